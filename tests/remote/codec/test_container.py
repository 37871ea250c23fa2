"""What is packed comes back to the bit, through any reader, and damage never passes for data."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash

from remote.shared.codec.container import pack_file, read_index, unpack_file
from remote.shared.codec.piece import HEADER, pack, unpack
from remote.shared.codec.reader import CompressedShard
from remote.shared.codec.states import PIECE_BYTES, StatesRange, find_states
from remote.shared.errors import RecordError


def states(rows: int, channels: int, seed: int = 0) -> np.ndarray:
    """Bf16 bit patterns of normal values whose scale differs from channel to channel, as hidden states' does."""
    random = np.random.default_rng(seed)
    scale = np.exp(random.normal(0, 2, channels))
    values = (random.normal(0, 1, (rows, channels)) * scale).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def shard(path: Path, rows: int, slots: int = 4, hidden: int = 64) -> bytes:
    """A shard as capture lays it out."""
    import json

    body = states(rows, slots * hidden).tobytes()
    tokens = np.arange(rows, dtype=np.int64).tobytes()
    header = json.dumps(
        {
            "__metadata__": {"rid": "roost.n.0.0.1"},
            "token_ids": {"dtype": "I64", "shape": [rows], "data_offsets": [0, len(tokens)]},
            "hidden_states": {
                "dtype": "BF16",
                "shape": [rows, slots, hidden],
                "data_offsets": [len(tokens), len(tokens) + len(body)],
            },
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    content = len(header).to_bytes(8, "little") + header + tokens + body
    path.write_bytes(content)
    return content


@pytest.mark.parametrize("rows", [1, 3, 511, 40_000])
def test_a_shard_comes_back_to_the_bit(tmp_path: Path, rows: int) -> None:
    content = shard(tmp_path / "hs_0.safetensors", rows)
    index = pack_file(tmp_path / "hs_0.safetensors", tmp_path / "packed.rz")
    assert index.xxh3 == xxhash.xxh3_128_hexdigest(content)
    unpack_file(tmp_path / "packed.rz", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(3, 103)), b"\xff" * 9, bytes(PIECE_BYTES + 3)])
def test_bytes_that_are_no_shard_come_back_as_well(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "any").write_bytes(content)
    pack_file(tmp_path / "any", tmp_path / "any.rz")
    unpack_file(tmp_path / "any.rz", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content


def test_every_bf16_bit_pattern_survives() -> None:
    plain = np.arange(1 << 16, dtype=np.uint16).tobytes()
    for channels in (1, 7, 256, 1 << 15):
        whole = plain[: len(plain) // (2 * channels) * 2 * channels]
        parts = pack(whole, channels)
        plain_bytes, _, packed_bytes = HEADER.unpack(parts[0])
        assert bytes(unpack(plain_bytes, channels, packed_bytes, b"".join(parts[1:]))) == whole


def test_states_take_at_most_seven_tenths(tmp_path: Path) -> None:
    content = shard(tmp_path / "plain", 4_000)
    pack_file(tmp_path / "plain", tmp_path / "packed")
    assert (tmp_path / "packed").stat().st_size < 0.70 * len(content)


def test_any_range_can_be_cut_into_pieces_that_cover_it_once() -> None:
    states = StatesRange(begin=100, end=100 + 64 * 50, channels=32)
    size = 100 + 64 * 50 + 17
    for start in range(0, size, 37):
        for stop in range(start + 1, size, 91):
            pieces = list(states.cut(start, stop))
            assert [begin for begin, _, _ in pieces] == [start, *[end for _, end, _ in pieces[:-1]]]
            assert pieces[-1][1] == stop
            assert all((begin - 100) % 64 == 0 == (end - 100) % 64 for begin, end, channels in pieces if channels)


@pytest.mark.parametrize("head", [b"", b"1234567", b"\xff" * 8, b"\x02" + bytes(7) + b"{}", b"\x02" + bytes(7) + b"[]"])
def test_bytes_without_a_safetensors_header_have_no_states(head: bytes) -> None:
    assert find_states(head) == StatesRange()


def test_the_reader_behaves_like_a_file(tmp_path: Path) -> None:
    content = shard(tmp_path / "plain", 50_000)
    pack_file(tmp_path / "plain", tmp_path / "packed")
    with CompressedShard(tmp_path / "packed") as raw:
        assert raw.size == len(content) > PIECE_BYTES
        assert raw.readall() == content
    with io.BufferedReader(CompressedShard(tmp_path / "packed"), 16) as reader:
        for position in (len(content) - 5, 0, PIECE_BYTES - 3, 12_345):
            reader.seek(position)
            wanted = content[position : position + 10]
            assert reader.read(len(wanted)) == wanted
        reader.seek(-4, os.SEEK_END)
        assert reader.read() == content[-4:]
        assert reader.read(1) == b""


@pytest.mark.parametrize("damage", ["flip a byte", "cut the end", "cut the middle", "empty"])
def test_damage_is_named_and_leaves_nothing_behind(tmp_path: Path, damage: str) -> None:
    shard(tmp_path / "plain", 500)
    pack_file(tmp_path / "plain", tmp_path / "packed")
    packed = bytearray((tmp_path / "packed").read_bytes())
    if damage == "flip a byte":
        packed[-2000] ^= 4
    elif damage == "cut the end":
        del packed[-10:]
    elif damage == "cut the middle":
        del packed[1000:5000]
    else:
        packed.clear()
    (tmp_path / "packed").write_bytes(packed)
    with pytest.raises(RecordError, match="cannot be unpacked"):
        unpack_file(tmp_path / "packed", tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed", "plain"]


def test_an_index_names_the_piece_of_every_byte(tmp_path: Path) -> None:
    shard(tmp_path / "plain", 70_000)
    pack_file(tmp_path / "plain", tmp_path / "packed")
    with (tmp_path / "packed").open("rb") as stream:
        index = read_index(stream)
    begins = [begin for begin, _ in index.pieces]
    assert begins[0] == 0
    assert len(begins) > 2
    for number, begin in enumerate(begins):
        assert index.piece_at(begin) == number
        assert index.piece_at(begin - 1) == number - 1 or not number
