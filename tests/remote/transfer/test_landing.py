"""Ranges in any order, holes, wrong bytes: a record is complete when every byte is right, and never before."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import xxhash

from remote.shared.messages.extract import ShardRow
from remote.shared.transfer.landing import Landing, Range
from remote.shared.transfer.sender import BLOCK_BYTES, block_digest

SIZE = 5 * BLOCK_BYTES + 1234


def row_of(content: bytes) -> ShardRow:
    return ShardRow(index=0, rows=1, size_bytes=len(content), xxh3=xxhash.xxh3_128_hexdigest(content), epoch=1)


def digests(content: bytes) -> bytes:
    return b"".join(block_digest(content[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES))


def write(landing: Landing, content: bytes, wanted: Range, step: int = 300_000) -> bool:
    """As a stream does it: in pieces."""
    landing.begin()
    for at in range(wanted.offset, wanted.offset + wanted.length, step):
        end = min(at + step, wanted.offset + wanted.length)
        landing.write(at, memoryview(content)[at:end])
    return landing.end(wanted.offset, wanted.offset + wanted.length)


@pytest.mark.parametrize("seed", range(5))
def test_ranges_in_any_order_make_the_record(tmp_path: Path, seed: int) -> None:
    content = os.urandom(SIZE)
    landing = Landing(row_of(content), tmp_path / "part")
    ranges = list(landing.all_ranges())
    random.Random(seed).shuffle(ranges)
    complete = [write(landing, content, wanted) for wanted in ranges]
    assert complete == [False] * (len(ranges) - 1) + [True]
    assert landing.is_right()
    assert landing.part.read_bytes() == content


def test_a_range_that_breaks_off_is_finished_by_another_stream(tmp_path: Path) -> None:
    content = os.urandom(SIZE)
    landing = Landing(row_of(content), tmp_path / "part")
    first, *others = landing.all_ranges()
    for wanted in others:
        assert not write(landing, content, wanted)
    assert not write(landing, content, Range(0, 1000))
    assert write(landing, content, Range(1000, first.length - 1000))
    assert landing.is_right()


def test_two_streams_may_write_at_once(tmp_path: Path) -> None:
    content = os.urandom(2 * BLOCK_BYTES)
    landing = Landing(row_of(content), tmp_path / "part")
    view = memoryview(content)
    landing.begin()
    landing.begin()
    landing.write(BLOCK_BYTES, view[BLOCK_BYTES:])
    landing.write(0, view[:BLOCK_BYTES])
    assert not landing.end(BLOCK_BYTES, 2 * BLOCK_BYTES)
    assert landing.end(0, BLOCK_BYTES)
    assert landing.is_right()


@pytest.mark.parametrize(
    ("damage", "missing"),
    [("none", 0), ("a wrong byte", 1), ("a hole", 1), ("cut short", 2), ("too long", 0), ("another record", 6)],
)
def test_only_blocks_that_differ_are_fetched_again(tmp_path: Path, damage: str, missing: int) -> None:
    content = os.urandom(SIZE)
    left = bytearray(content)
    if damage == "a wrong byte":
        left[2 * BLOCK_BYTES + 5] ^= 1
    elif damage == "a hole":
        left[BLOCK_BYTES : 2 * BLOCK_BYTES] = bytes(BLOCK_BYTES)
    elif damage == "cut short":
        del left[4 * BLOCK_BYTES + 7 :]
    elif damage == "too long":
        left += b"more"
    elif damage == "another record":
        left = bytearray(os.urandom(SIZE))
    (tmp_path / "part").write_bytes(left)
    landing = Landing(row_of(content), tmp_path / "part")
    ranges = landing.keep_equal(digests(content[: landing.left()]))
    assert len(ranges) == missing
    for wanted in ranges:
        write(landing, content, wanted)
    assert landing.is_right()
    assert landing.part.read_bytes() == content


def test_a_record_with_a_wrong_byte_is_not_right(tmp_path: Path) -> None:
    content = os.urandom(SIZE)
    wrong = bytearray(content)
    wrong[-1] ^= 1
    landing = Landing(row_of(content), tmp_path / "part")
    for wanted in landing.all_ranges():
        write(landing, bytes(wrong), wanted)
    assert not landing.is_right()
