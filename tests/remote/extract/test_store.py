"""A dump is compared with the request byte by byte, and every kind of difference is found."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.extract import store as storing
from remote.extract.dump import Expected
from remote.extract.store import store
from remote.shared.errors import RecordError
from remote.shared.shard.rowsums import RowSums
from remote.shared.shard.rowsums import text as sums_text
from remote.shared.shard.tensorfile import read_metadata
from tests.remote.extract.conftest import identity, tokens_of
from tests.remote.extract.standin import CAPTURE, HEADER_BYTES, SGLANG, Config, dump_content

ROWS = 40
RID = f"roost.abc.7.1.{ROWS}"


def config(dtype: str) -> Config:
    return Config("", "", 0, dtype=dtype)


def expected(dtype: str = "BF16") -> Expected:
    return Expected(RID, 7, tokens_of(7, ROWS), identity(dtype=dtype), SGLANG, CAPTURE)


def content(dtype: str = "BF16", fault: str = "") -> bytearray:
    return bytearray(dump_content(RID, tokens_of(7, ROWS).tolist(), config(dtype), fault))


@pytest.fixture
def trial(tmp_path: Path) -> Callable[..., Path]:
    """Store such bytes; returns the shard."""

    def run(data: bytes | bytearray, wanted: Expected) -> Path:
        dump, shard = tmp_path / "dump.safetensors", tmp_path / "hs_7.safetensors"
        dump.write_bytes(data)
        stored = store(dump, shard, wanted)
        assert (stored.size_bytes, stored.xxh3) == (len(data), xxhash.xxh3_128_hexdigest(shard.read_bytes()))
        return shard

    return run


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("chunk", [1, 1000, 1 << 14, 1 << 20])
def test_a_shard_equals_its_dump_with_the_run_in_the_header_at_any_chunk_size(
    trial: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, dtype: str, chunk: int
) -> None:
    monkeypatch.setattr(storing, "CHUNK_BYTES", chunk)
    wanted = expected(dtype)
    shard = trial(content(dtype), wanted)
    assert shard.read_bytes()[HEADER_BYTES:] == content(dtype)[HEADER_BYTES:]
    said = json.loads(bytes(content(dtype)[8:HEADER_BYTES]))["__metadata__"]
    assert read_metadata(shard) == {**said, **wanted.identity.marks}


def test_a_dump_whose_header_has_no_room_for_the_run_is_refused(trial: Callable[..., Path], tmp_path: Path) -> None:
    data = content()
    header = json.loads(bytes(data[8:HEADER_BYTES]))
    header["__metadata__"]["more"] = ""
    header["__metadata__"]["more"] = "x" * (HEADER_BYTES - 8 - len(json.dumps(header)))
    data[8:HEADER_BYTES] = json.dumps(header).encode()
    with pytest.raises(RecordError, match="cannot name its run: the header takes"):
        trial(data, expected())
    assert list(tmp_path.glob("*hs_*")) == []


@pytest.mark.parametrize("row", [0, 17, ROWS - 1])
@pytest.mark.parametrize("slot", [0, 2])
@pytest.mark.parametrize(
    ("value", "count", "says"),
    [
        (0x7FC1, 1, "The rows of boundary {} are not those that the forward pass left"),
        (0x0001, 1, "The rows of boundary {} are not those that the forward pass left"),
        (0x3F80, 64, "Row {row} of boundary {} has one magnitude throughout"),
        (0x8000, 64, "Row {row} of boundary {} is all zeros"),
    ],
)
def test_a_changed_value_is_found_at_any_place(
    trial: Callable[..., Path], tmp_path: Path, row: int, slot: int, value: int, count: int, says: str
) -> None:
    data = content()
    start = HEADER_BYTES + 8 * ROWS + 2 * 64 * (3 * row + slot)
    data[start : start + 2 * count] = struct.pack("<H", value) * count
    with pytest.raises(RecordError, match=says.format([1, 3, 6][slot], row=row)):
        trial(data, expected())
    assert list(tmp_path.glob("*hs_*")) == []


def test_an_embedding_of_zeros_is_accepted_only_at_boundary_0(trial: Callable[..., Path]) -> None:
    wanted = expected()
    wanted = replace(wanted, identity=identity(dtype="BF16", boundaries=[0, 3, 6]))
    about = replace(config("BF16"), boundaries=[0, 3, 6])
    data = bytearray(dump_content(RID, wanted.tokens.tolist(), about, "zero embedding"))
    assert trial(data, wanted).exists()
    start = HEADER_BYTES + 8 * ROWS
    assert data[start : start + 128] == bytes(128)
    data[start + 128 : start + 256] = bytes(128)
    with pytest.raises(RecordError, match="Row 0 of boundary 3 is all zeros"):
        trial(data, wanted)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rid": "roost.abc.8.1.40"}, "The dump's rid"),
        ({"tokens": tokens_of(8, ROWS)}, "token ids' digest"),
        ({"tokens": tokens_of(7, ROWS - 1)}, "rows"),
        ({"sglang": "0.5.9"}, "SGLang version"),
        ({"capture": "0"}, "capture version"),
        ({"identity": identity(dtype="F16")}, "dtype"),
        ({"identity": identity(dtype="BF16", hidden_size=32)}, "shape"),
        ({"identity": identity(dtype="BF16", final="post")}, "final state"),
    ],
)
def test_another_record_s_dump_is_refused(trial: Callable[..., Path], change: dict[str, object], says: str) -> None:
    with pytest.raises(RecordError, match=says):
        trial(content(), replace(expected(), **change))  # type: ignore[arg-type]


def without(metadata: str) -> bytearray:
    """A dump whose header lacks a key."""
    return bytearray(bytes(content()).replace(b'"%s"' % metadata.encode(), b'"%s"' % metadata.upper().encode()))


def test_a_dump_without_row_sums_or_with_wrong_row_sums_is_refused(trial: Callable[..., Path]) -> None:
    with pytest.raises(RecordError, match="has no row sums, because its server runs an older Roost's capture"):
        trial(without("row_sums"), expected())
    sums = RowSums(7, [1, 3, 6])
    sums.add(np.frombuffer(content()[HEADER_BYTES + 8 * ROWS :], np.uint16).reshape(ROWS, 3, 64))
    (first, *_) = json.loads(sums_text(sums.totals))
    with pytest.raises(RecordError, match="instead of 3 digests"):
        trial(content().replace(first.encode(), b'\\"' * 8), expected())
    with pytest.raises(RecordError, match="The rows of boundary 1 are not"):
        trial(content().replace(first.encode(), b"0" * 16), expected())


def test_token_ids_are_compared_and_not_only_their_digest(
    trial: Callable[..., Path],
) -> None:
    data = content()
    data[HEADER_BYTES + 8 * 5] ^= 1
    tokens = tokens_of(7, ROWS)
    with pytest.raises(RecordError, match=f"Token 5 of the dump is {tokens[5] ^ 1}, but {tokens[5]} was sent"):
        trial(data, expected())


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_damaged_header_only_refuses_its_record(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    original = content()
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, HEADER_BYTES - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "dump.safetensors").write_bytes(damaged)
    try:
        store(folder / "dump.safetensors", folder / "hs_7.safetensors", expected())
    except RecordError:
        assert not (folder / "hs_7.safetensors").exists()
    else:
        assert np.array_equal(damaged[HEADER_BYTES:], original[HEADER_BYTES:])
