"""Bytes that only look compressed are refused in one sentence, before they take memory."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from remote.shared.codec.container import MAGIC, plain_pieces, read_index
from remote.shared.codec.piece import HEADER, DamagedError, pack, split_pieces
from remote.shared.codec.states import PIECE_BYTES, find_states
from tests.hostile import examples, json_objects

PLAIN = np.arange(4 * 64, dtype=np.uint16).tobytes()


def bomb(plain: int) -> bytes:
    """A few kilobytes that unpack to `plain` bytes."""
    return zstandard.ZstdCompressor().compress(bytes(plain))


@examples(100)
@given(st.binary(max_size=100), st.integers(0, 300))
def test_bytes_of_any_kind_are_refused_or_have_their_size(payload: bytes, size: int) -> None:
    try:
        assert sum(map(len, split_pieces(payload, size))) == size
    except DamagedError:
        return


@examples(100)
@given(st.integers(0, 1 << 16), st.integers(0, 255))
def test_a_damaged_piece_is_refused_or_has_its_size(place: int, value: int) -> None:
    payload = bytearray(b"".join(pack(PLAIN, 64)))
    payload[place % len(payload)] = value
    try:
        assert sum(map(len, split_pieces(payload, len(PLAIN)))) == len(PLAIN)
    except DamagedError:
        return


@pytest.mark.parametrize(("said", "channels"), [(1000, 0), (1000, 2), (0, 0)])
def test_a_bomb_is_not_unpacked(said: int, channels: int) -> None:
    packed = bomb(200 << 20)
    payload = HEADER.pack(said, channels, len(packed)) + bytes(channels) + packed + bytes(said // 2 if channels else 0)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError):
            list(split_pieces(payload, 1000))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [len(PLAIN) - 2, len(PLAIN) + 2])
def test_pieces_of_another_size_than_requested_are_refused(size: int) -> None:
    with pytest.raises(DamagedError):
        list(split_pieces(b"".join(pack(PLAIN, 64)), size))


def header_of(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


numbers = st.one_of(st.integers(-(1 << 70), 1 << 70), st.integers(-1, 60), st.floats(), st.text(max_size=2))
tensors = st.fixed_dictionaries(
    {
        "dtype": st.just("BF16"),
        "shape": st.lists(st.integers(-5, 1 << 70), max_size=4),
        "data_offsets": st.lists(st.integers(-(1 << 70), 1 << 70), max_size=3),
    }
)


@examples(100)
@given(
    st.one_of(
        st.binary(max_size=40),
        json_objects().map(lambda value: json.dumps(value).encode()),
        tensors.map(lambda entry: json.dumps({"x": entry}).encode()),
    ),
    st.integers(0, 1 << 20),
)
def test_a_shard_with_any_header_is_cut_completely(text: bytes, size: int) -> None:
    pieces = list(find_states(header_of(text)).cut(0, size))
    assert [begin for begin, _, _ in pieces] == [0, *(end for _, end, _ in pieces[:-1])][: len(pieces)]
    assert (pieces[-1][1] if pieces else 0) == size
    assert all(0 < end - begin <= PIECE_BYTES for begin, end, _ in pieces)
    assert all(not channels or (end - begin) % (2 * channels) == 0 for begin, end, channels in pieces)


def test_a_deeply_nested_header_has_no_states() -> None:
    assert find_states(header_of(b"[" * 100_000)).channels == 0


@examples(75)
@given(
    st.one_of(
        json_objects(),
        st.fixed_dictionaries(
            {
                "size": numbers,
                "xxh3": st.text(max_size=5),
                "pieces": st.lists(st.tuples(numbers, numbers), max_size=3),
            }
        ),
    ).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=40),
)
def test_a_container_of_any_content_is_refused_or_read(text: bytes, before: bytes) -> None:
    container = io.BytesIO(MAGIC + before + text + struct.pack("<I8s", len(text), MAGIC))
    try:
        pieces = list(plain_pieces(container))
    except DamagedError:
        return
    assert sum(map(len, pieces)) == json.loads(text)["size"]


def test_a_deeply_nested_index_is_refused() -> None:
    text = b"[" * 100_000
    with pytest.raises(DamagedError):
        list(plain_pieces(io.BytesIO(MAGIC + text + struct.pack("<I8s", len(text), MAGIC))))


def container_of(plain_bytes: int, said: int, pieces: list[list[int]], size: int) -> io.BytesIO:
    """A container with one real piece of `plain_bytes` zeros that says it has `said`."""
    packed = bomb(plain_bytes)
    piece = HEADER.pack(said, 0, len(packed)) + packed
    text = json.dumps({"size": size, "xxh3": "0" * 32, "pieces": pieces}).encode()
    return io.BytesIO(MAGIC + piece + text + struct.pack("<I8s", len(text), MAGIC))


HUGE = 512 << 20
FIRST = len(MAGIC)


@pytest.mark.parametrize(
    ("plain", "said", "pieces", "size"),
    [
        pytest.param(HUGE, HUGE, [[0, FIRST]], HUGE, id="one piece of half a GiB"),
        pytest.param(HUGE, 1000, [[0, FIRST]], 1000, id="a piece that holds more than it says"),
        pytest.param(HUGE, HUGE, [[0, FIRST]], 1000, id="a piece that says more than the index"),
        pytest.param(1000, 1000, [[0, FIRST]] * 1000, 1000, id="one piece named many times"),
        pytest.param(1000, 1000, [[1000 * i, FIRST] for i in range(1000)], 1_000_000, id="one piece at many places"),
        pytest.param(1000, 1000, [[0, FIRST], [500, FIRST + 1]], 1000, id="pieces inside each other"),
        pytest.param(1000, 1000, [[10, FIRST]], 1000, id="a gap at the start"),
        pytest.param(
            PIECE_BYTES, PIECE_BYTES, [[0, FIRST], [PIECE_BYTES, FIRST + 20]], 2 * PIECE_BYTES, id="32 MiB in 1.6 KB"
        ),
        pytest.param(1000, 1000, [], 1000, id="no pieces"),
        pytest.param(1000, 1000, [[True, FIRST]], 1000, id="no number"),
    ],
)
def test_a_container_that_grows_is_refused_before_it_costs_memory(
    plain: int, said: int, pieces: list[list[int]], size: int
) -> None:
    container = container_of(plain, said, pieces, size)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError):
            list(plain_pieces(container))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@examples(60)
@given(st.binary(max_size=3000), st.integers(0, 1 << 16), st.integers(0, 255))
def test_a_damaged_container_is_refused_or_has_its_size(plain: bytes, place: int, value: int) -> None:
    pieces, at, body = [], FIRST, b""
    for begin in range(0, len(plain), 1000):
        piece = b"".join(pack(plain[begin : begin + 1000], 0))
        pieces.append([begin, at])
        at, body = at + len(piece), body + piece
    text = json.dumps({"size": len(plain), "xxh3": "", "pieces": pieces}).encode()
    whole = bytearray(MAGIC + body + text + struct.pack("<I8s", len(text), MAGIC))
    assert b"".join(plain_pieces(io.BytesIO(whole))) == plain
    whole[place % len(whole)] = value
    try:
        index = read_index(io.BytesIO(whole))
        assert sum(map(len, plain_pieces(io.BytesIO(whole)))) == index.size
    except DamagedError:
        return
