"""Turns a dump into a shard: reads it once from the RAM disk, and hashes, checks and writes it in the same pass.

Runs on the host in the collector's threads. All heavy steps (read, xxh3, numpy, write, fsync) release the GIL, and the
chunk stays in the cache between them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

from remote.extract.dump import Expected, check, check_tokens, norms, open_dump, read_header, row_sums
from remote.shared.errors import RecordError
from remote.shared.files import written_aside
from remote.shared.shard.header import Header, Span
from remote.shared.shard.rows import RowCheck

CHUNK_BYTES = 2 << 20
"""With 1 MiB, eight threads wait for the GIL; with 8 MiB, they wait for memory (`benchmarks/collector.py`)."""


_mine = threading.local()


@dataclass(frozen=True)
class Stored:
    """A complete and durable shard on disk."""

    path: Path
    size_bytes: int
    xxh3: str
    mean_norm: list[float]
    max_norm: list[float]


def store(dump: Path, shard: Path, expected: Expected) -> Stored:
    """Validate `dump` and copy it to `shard`, atomically and fsynced. The dump is not removed.

    Raises RecordError if the dump is not the requested record, OSError if the disk fails.
    """
    with open_dump(dump) as source:
        header = read_header(source, dump)
        states = check(header, expected)
        check_tokens(source, header, expected)
        mean, largest = norms(header, len(expected.identity.boundaries))
        claimed, head = row_sums(header), _head(header, expected)
        source.seek(len(head))
        with written_aside(shard) as aside:
            digest = _copy(source, aside, head, states, expected, claimed)
    return Stored(shard, header.size, digest, mean, largest)


def _head(header: Header, expected: Expected) -> bytes:
    """Return the shard's header area: the dump's metadata with the run's marks, so that a single file names its run."""
    try:
        return expected.layout.header({**header.metadata, **expected.identity.marks})
    except ValueError as error:
        raise RecordError(f"The dump's header cannot name its run: {error}.") from error


def _copy(source: BinaryIO, aside: Path, head: bytes, states: Span, expected: Expected, claimed: str) -> str:
    """Write `head`, copy all bytes of the dump behind it, and return the xxh3-128 of the written bytes.

    The rows of the hidden states are checked meanwhile, and their sums are compared with capture's sums, `claimed`.
    """
    digest, size = xxhash.xxh3_128(head), expected.layout.size
    rows = RowCheck(states, expected.identity.boundaries, expected.index)
    buffer = _buffer(max(CHUNK_BYTES, rows.row_bytes))
    with aside.open("r+b", buffering=0) as target:
        os.posix_fallocate(target.fileno(), 0, size)
        _write(target, memoryview(head))
        for begin, end in _pieces(len(head), size, states, len(buffer) // rows.row_bytes * rows.row_bytes):
            piece = buffer[: end - begin]
            _fill(source, piece)
            digest.update(piece)
            if states.begin <= begin < states.end:
                rows.take(piece)
            _write(target, piece)
    rows.finish(expected.tokens)
    rows.sums.compare(claimed)
    return digest.hexdigest()


def _buffer(size: int) -> memoryview:
    """Return a buffer of at least `size` bytes, which this thread reuses: new memory costs page faults."""
    if len(getattr(_mine, "buffer", b"")) < size:
        _mine.buffer = bytearray(size)
    return memoryview(_mine.buffer)[:size]


def _pieces(first: int, size: int, states: Span, step: int) -> Iterator[tuple[int, int]]:
    """Yield the file from `first` on in pieces of at most `step` bytes. The states are cut only between rows."""
    for start, stop in ((first, states.begin), (states.begin, states.end), (states.end, size)):
        for begin in range(start, stop, step):
            yield begin, min(begin + step, stop)


def _fill(source: BinaryIO, piece: memoryview) -> None:
    done = 0
    while done < len(piece):
        read = source.readinto(piece[done:])  # type: ignore[attr-defined]
        if not read:
            raise RecordError("The dump became shorter while it was read.")
        done += read


def _write(target: BinaryIO, piece: memoryview) -> None:
    done = 0
    while done < len(piece):
        done += target.write(piece[done:])
