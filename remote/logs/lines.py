"""Runs on the host for `remote.logs`: the whole lines of one open file, with exact offsets. Reads that file only.

A line is given out when its newline is there, never before. Memory is bounded whatever the file holds.
"""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from remote.shared.files import open_own

CHUNK_BYTES = 64 << 10
"""Also about the size of what a cut connection has to send again."""
MAX_LINE_BYTES = 64 << 10
"""A longer line is cut here; what was left out is counted at its end."""
HEAD_BYTES = 256


class LineReader:
    """Reads `path` from `offset` on; `offset` is always where the next line that was not given out begins."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self._descriptor = open_own(path)
        self.inode = os.fstat(self._descriptor).st_ino
        self._head = b""
        self.restart(offset)

    def restart(self, offset: int) -> None:
        """Go on at `offset`, which must be a line's first byte."""
        self.offset = offset
        self._pending = b""
        self._left_out = 0
        self._head = b""

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def size(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self._descriptor).st_size

    @property
    def at_end(self) -> bool:
        """True when all bytes were read, an unfinished last line included."""
        return self._read_to >= self.size

    def read(self) -> list[str]:
        """The next whole lines, at most about CHUNK_BYTES of them; may be empty before the end is reached."""
        data = os.pread(self._descriptor, CHUNK_BYTES, self._read_to)
        lines: list[str] = []
        if self._left_out:
            data = self._finish_long_line(data, lines)
        if self._left_out:
            return lines
        block = self._pending + data
        cut = block.rfind(b"\n") + 1
        self.offset += cut
        self._keep(block[cut:])
        if cut:
            lines.extend(_decode(block[: cut - 1]))
        return lines

    def rest(self) -> list[str]:
        """The last line of a file that nobody writes any more, if it lacks its newline."""
        lines = [_cut(self._pending, self._left_out)] if self._pending else []
        self.offset = self._read_to
        self._pending, self._left_out = b"", 0
        return lines

    def head(self) -> str:
        """Digest of the file's first min(offset, HEAD_BYTES) bytes, as `LogPosition.head`."""
        wanted = min(self.offset, HEAD_BYTES)
        if len(self._head) != wanted:
            self._head = os.pread(self._descriptor, wanted, 0)
        return xxhash.xxh3_64_hexdigest(self._head)

    def was_rewritten(self) -> bool:
        """True when the bytes behind us are no longer those that were read (truncated in place, as copytruncate)."""
        if self.size < self._read_to:
            return True
        before = self.head()
        self._head = b""
        return self.head() != before

    @property
    def _read_to(self) -> int:
        return self.offset + len(self._pending) + self._left_out

    def _keep(self, tail: bytes) -> None:
        self._pending = tail[:MAX_LINE_BYTES]
        self._left_out = len(tail) - len(self._pending)

    def _finish_long_line(self, data: bytes, lines: list[str]) -> bytes:
        """Skip to the newline of the line whose beginning is pending; return what comes after it."""
        end = data.find(b"\n")
        if end < 0:
            self._left_out += len(data)
            return b""
        lines.append(_cut(self._pending, self._left_out + end))
        self.offset = self._read_to + end + 1
        self._pending, self._left_out = b"", 0
        return data[end + 1 :]


def _decode(block: bytes) -> list[str]:
    """Lines of a block; decoding it in one go is what makes 100,000 lines a matter of milliseconds."""
    if len(block) <= MAX_LINE_BYTES:
        return block.decode(errors="replace").split("\n")
    lines = block.split(b"\n")
    if max(map(len, lines)) <= MAX_LINE_BYTES:
        return block.decode(errors="replace").split("\n")
    return [_cut(line[:MAX_LINE_BYTES], max(0, len(line) - MAX_LINE_BYTES)) for line in lines]


def _cut(line: bytes, left_out: int) -> str:
    text = line.decode(errors="replace")
    return f"{text}… [{left_out} bytes left out]" if left_out else text
