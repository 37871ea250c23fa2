"""One record on its way to disk: ranges arrive in any order, are written to their offsets and hashed in order.

The part file is the only state. After an interruption its blocks are compared with the source's by digest: equal blocks
stay, and blocks with a hole or a wrong byte are fetched again. Used by several stream threads at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from remote.shared.files import SHARED_MODE
from remote.shared.messages.extract import ShardRow
from remote.shared.paths import COMPRESSED_SUFFIX, shard_name
from remote.shared.transfer.sender import BLOCK_BYTES, DIGEST_BYTES, block_digest

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Range:
    """Bytes of a record, at most a block of them."""

    offset: int
    length: int


class Landing:
    """The part file of one record, and the digest of its bytes up to the first gap."""

    def __init__(self, row: ShardRow, part: Path) -> None:
        self.row = row
        self.part = part
        self.repaired = False
        """Whether its blocks have been compared with the source's after a wrong digest."""
        self.missing_bytes = row.size_bytes
        """Bytes that the last comparison found missing."""
        self.settled = False
        """Whether the record was handed in or given up; late answers for it are dropped."""
        self._lock = threading.Lock()
        self._descriptor = -1
        self._writers = 0
        self._told = False
        self._digest = xxhash.xxh3_128()
        self._frontier = 0
        self._ahead: dict[int, int] = {}
        """Complete ranges behind a gap: begin and end."""

    @property
    def name(self) -> str:
        """The name of the record's file on the source."""
        return shard_name(self.row.index) + (COMPRESSED_SUFFIX if self.row.stored == "compressed" else "")

    def left(self) -> int:
        """Return how many bytes an earlier pull left."""
        try:
            return min(self.part.stat().st_size, self.row.size_bytes)
        except FileNotFoundError:
            return 0

    def all_ranges(self) -> Iterator[Range]:
        """Yield the record's ranges, block by block."""
        for offset in range(0, self.row.size_bytes, BLOCK_BYTES):
            yield Range(offset, min(BLOCK_BYTES, self.row.size_bytes - offset))

    def keep_equal(self, digests: bytes) -> list[Range]:
        """Compare the part's blocks with the source's digests; return the ranges that have to be fetched.

        No stream may be writing.
        """
        theirs = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
        self._digest.reset()
        self._told = False
        self._frontier = 0
        self._ahead.clear()
        descriptor = os.open(self.part, os.O_RDWR | os.O_NOFOLLOW)
        try:
            os.truncate(descriptor, min(os.fstat(descriptor).st_size, self.row.size_bytes))
            missing = [
                wanted
                for number, wanted in enumerate(self.all_ranges())
                if not (number < len(theirs) and self._keeps(descriptor, wanted, theirs[number]))
            ]
            self._descriptor = descriptor
            self._catch_up()
        finally:
            self._descriptor = -1
            os.close(descriptor)
        self.missing_bytes = sum(wanted.length for wanted in missing)
        return missing

    def _keeps(self, descriptor: int, wanted: Range, digest: bytes) -> bool:
        block = os.pread(descriptor, wanted.length, wanted.offset)
        if len(block) < wanted.length or block_digest(block) != digest:
            return False
        if wanted.offset == self._frontier:
            self._digest.update(block)
            self._frontier += len(block)
        else:
            self._ahead[wanted.offset] = wanted.offset + len(block)
        return True

    def begin(self) -> None:
        """Note that a stream starts to write; the file is open while a stream writes."""
        with self._lock:
            if not self._writers:
                self._descriptor = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, SHARED_MODE)
            self._writers += 1

    def write(self, offset: int, piece: memoryview) -> None:
        """Write bytes to their offset, and hash them now if nothing before them is missing."""
        written = 0
        while written < len(piece):
            written += os.pwrite(self._descriptor, piece[written:], offset + written)
        with self._lock:
            if offset == self._frontier:
                self._digest.update(piece)
                self._frontier += len(piece)

    def end(self, begun: int, reached: int) -> bool:
        """Note that a stream has written [begun, reached); return True if the record is complete and has no writer.

        True is returned to one caller only; that caller finishes the record.
        """
        with self._lock:
            if begun < reached and self._frontier <= begun:
                self._ahead[begun] = reached
            self._catch_up()
            self._writers -= 1
            if not self._writers:
                os.close(self._descriptor)
                self._descriptor = -1
            last = not self._writers and not self._told and self._frontier == self.row.size_bytes
            self._told = self._told or last
            return last

    def is_right(self) -> bool:
        """Return whether the whole record has the digest of the host's ledger."""
        return self._digest.hexdigest() == self.row.xxh3

    def _catch_up(self) -> None:
        """Hash the ranges behind a gap that is closed now; their bytes are still in the page cache."""
        while (end := self._ahead.pop(self._frontier, None)) is not None:
            while self._frontier < end:
                piece = os.pread(self._descriptor, min(_PIECE_BYTES, end - self._frontier), self._frontier)
                self._digest.update(piece)
                self._frontier += len(piece)
