"""One dump becomes one shard: read once from the RAM disk, and in that pass hashed, looked at and written.

Runs on the host in the collector's threads; everything heavy in it (read, xxh3, numpy, write, fsync) lets go of the
GIL. The chunk stays in the cache between the four.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from remote.extract.dump import Expected, Span, check, check_tokens, norms, read_header
from remote.shared.errors import RecordError
from remote.shared.files import written_aside
from remote.shared.messages.run import RunIdentity
from remote.shared.shard.layout import with_metadata

CHUNK_BYTES = 2 << 20
"""With 1 MiB eight threads wait for the GIL in turns, with 8 MiB for memory (`benchmarks/collector.py`)."""

_BITS: dict[str, tuple[Any, int, int]] = {
    # dtype: unsigned type of its size, mask without the sign, smallest masked value that is not finite
    "BF16": (np.uint16, 0x7FFF, 0x7F80),
    "F16": (np.uint16, 0x7FFF, 0x7C00),
    "F32": (np.uint32, 0x7FFFFFFF, 0x7F800000),
}


@dataclass(frozen=True)
class Stored:
    """A shard that is on disk, whole and durable."""

    path: Path
    size_bytes: int
    xxh3: str
    mean_norm: list[float]
    max_norm: list[float]


def store(dump: Path, shard: Path, expected: Expected) -> Stored:
    """Validate `dump` and copy it to `shard` (whole, fsynced); the dump stays where it is.

    Raises RecordError where the dump is not the record that was asked for, OSError where the disk fails.
    """
    with dump.open("rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        if size > expected.size_limit_bytes:
            raise RecordError(f"The dump is {size} bytes long; the record admits {expected.size_limit_bytes}.")
        header = read_header(source, dump)
        states = check(header, size, expected)
        check_tokens(source, header, expected)
        mean, largest = norms(header, len(expected.identity.boundaries))
        source.seek(0)
        head = _head(source, header.size_bytes, expected.identity)
        with written_aside(shard) as aside:
            digest = _copy(source, aside, head, size, states, expected.identity.boundaries)
    return Stored(shard, size, digest, mean, largest)


def _head(source: BinaryIO, size: int, identity: RunIdentity) -> bytes:
    """The dump's header area as the shard gets it: with the marks of its run, so that a file alone says whose it is."""
    head = bytearray(size)
    _fill(source, memoryview(head))
    try:
        return with_metadata(bytes(head), identity.marks)
    except ValueError as error:
        raise RecordError(f"The dump's header cannot name its run: {error}.") from error


def _copy(source: BinaryIO, aside: Path, head: bytes, size: int, states: Span, boundaries: tuple[int, ...]) -> str:
    """Write `head`, copy all bytes behind it, and return the xxh3-128 of what was written.

    The rows of the hidden states are looked at on the way.
    """
    digest = xxhash.xxh3_128(head)
    rows = RowCheck(states, boundaries)
    buffer = memoryview(bytearray(max(CHUNK_BYTES, rows.row_bytes)))
    with aside.open("r+b", buffering=0) as target:
        os.posix_fallocate(target.fileno(), 0, size)
        _write(target, memoryview(head))
        for begin, end in _pieces(len(head), size, states, len(buffer) // rows.row_bytes * rows.row_bytes):
            piece = buffer[: end - begin]
            _fill(source, piece)
            digest.update(piece)
            if states.begin <= begin < states.end:
                rows.look(piece)
            _write(target, piece)
    return digest.hexdigest()


def _pieces(first: int, size: int, states: Span, step: int) -> Iterator[tuple[int, int]]:
    """Cut the file from `first` on into pieces of at most `step` bytes, such that states are cut between rows only."""
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


class RowCheck:
    """Looks at every value of the states, in order of rows: finite, not all zeros, not all alike.

    Capture said so already, on the device; this sees what happened between there and here as well.
    """

    def __init__(self, states: Span, boundaries: tuple[int, ...]) -> None:
        self._type, self._mask, self._limit = _BITS[states.dtype]
        _, self._slots, self._hidden = states.shape
        self.row_bytes = self._slots * self._hidden * np.dtype(self._type).itemsize
        self._boundaries = boundaries
        self._scratch: NDArray[Any] = np.empty(
            (max(CHUNK_BYTES // self.row_bytes, 1) * self._slots, self._hidden), self._type
        )
        self._seen = 0

    def look(self, piece: memoryview) -> None:
        """Check whole rows; raises RecordError naming the first row and slot that cannot be right."""
        values = np.frombuffer(piece, self._type).reshape(-1, self._hidden)
        magnitudes = self._scratch[: len(values)]
        np.bitwise_and(values, self._type(self._mask), out=magnitudes)
        largest = magnitudes.max(axis=1)
        self._refuse(largest >= self._limit, "holds a value that is not finite")
        zero = largest == 0
        if zero.any():
            embedding = np.tile(np.array(self._boundaries) == 0, len(values) // self._slots)
            self._refuse(zero & ~embedding, "is all zeros")
        if self._hidden > 1:
            constant = (magnitudes[:, 0] == largest) & (magnitudes[:, -1] == largest) & ~zero
            if constant.any():  # hardly ever: the whole row is looked at then alone
                constant[constant] = magnitudes[constant].min(axis=1) == largest[constant]
            self._refuse(constant, "has one magnitude throughout")
        self._seen += len(values) // self._slots

    def _refuse(self, wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            row, slot = divmod(int(np.flatnonzero(wrong)[0]), self._slots)
            boundary = self._boundaries[slot]
            raise RecordError(f"Row {self._seen + row} of boundary {boundary} {what}.")
