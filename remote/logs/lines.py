"""Runs on the host for `remote.logs`: reads whole lines of one open file, with exact offsets. Reads that file only.

A line is yielded only when its newline has been written. Memory is bounded, whatever the file holds.
"""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from remote.shared.files import open_own

CHUNK_BYTES = 64 << 10
"""Bytes that are read at once; after a cut connection, about as many are sent again."""
MAX_LINE_BYTES = 64 << 10
"""A longer line is cut at this length, and its end says how many bytes were left out."""
HEAD_BYTES = 256


class LineReader:
    """Reads `path` from `offset`, which is always the start of the next line to yield."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self._descriptor = open_own(path)
        self.inode = os.fstat(self._descriptor).st_ino
        self._head = b""
        self.restart(offset)

    def restart(self, offset: int) -> None:
        """Continue at `offset`, which must be a line's first byte."""
        self.offset = offset
        self._pending = b""
        self._left_out = 0
        self._head = b""

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def size(self) -> int:
        """Current size of the file in bytes."""
        return os.fstat(self._descriptor).st_size

    @property
    def at_end(self) -> bool:
        """Whether all bytes were read, even those of an unfinished last line."""
        return self._read_to >= self.size

    def read(self) -> list[str]:
        """Return the next whole lines, about CHUNK_BYTES at most; may be empty before the end of the file."""
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
        """Return the last line without a newline, of a file that is no longer written."""
        lines = [_cut(self._pending, self._left_out)] if self._pending else []
        self.offset = self._read_to
        self._pending, self._left_out = b"", 0
        return lines

    def head(self) -> str:
        """Return the digest of the file's first min(offset, HEAD_BYTES) bytes, for `LogPosition.head`."""
        wanted = min(self.offset, HEAD_BYTES)
        if len(self._head) != wanted:
            self._head = os.pread(self._descriptor, wanted, 0)
        return xxhash.xxh3_64_hexdigest(self._head)

    def was_rewritten(self) -> bool:
        """Return whether the bytes read earlier have changed, as after logrotate's copytruncate."""
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
        """Skip to the end of the line whose beginning is pending; return the bytes after it."""
        end = data.find(b"\n")
        if end < 0:
            self._left_out += len(data)
            return b""
        lines.append(_cut(self._pending, self._left_out + end))
        self.offset = self._read_to + end + 1
        self._pending, self._left_out = b"", 0
        return data[end + 1 :]


def _decode(block: bytes) -> list[str]:
    """Return a block's lines; decoding the whole block at once takes milliseconds for 100,000 lines."""
    if len(block) <= MAX_LINE_BYTES:
        return block.decode(errors="replace").split("\n")
    lines = block.split(b"\n")
    if max(map(len, lines)) <= MAX_LINE_BYTES:
        return block.decode(errors="replace").split("\n")
    return [_cut(line[:MAX_LINE_BYTES], max(0, len(line) - MAX_LINE_BYTES)) for line in lines]


def _cut(line: bytes, left_out: int) -> str:
    text = line.decode(errors="replace")
    return f"{text}… [{left_out} bytes left out]" if left_out else text
