"""Reads a container like a file of its plain bytes, for a training loop or `safetensors`.

    with CompressedShard(path) as shard:
        tensors = safetensors.torch.load(shard.read())

Runs anywhere; imports numpy and zstandard. Reads only.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from remote.shared.codec.container import read_index, read_piece
from remote.shared.codec.piece import Bytes


class CompressedShard(io.RawIOBase):
    """A container opened for reading. It keeps the last piece unpacked, so sequential reads unpack no piece twice."""

    def __init__(self, path: Path | str) -> None:
        """Open a container; raises DamagedError if the file is none or is damaged."""
        super().__init__()
        self._stream = Path(path).open("rb")  # noqa: SIM115
        self._index = read_index(self._stream)
        self._position = 0
        self._number = -1
        self._piece: memoryview = memoryview(b"")

    @property
    def xxh3(self) -> str:
        """The xxh3-128 of all plain bytes (32 hex digits), from the container's index."""
        return self._index.xxh3

    @property
    def size(self) -> int:
        """The number of plain bytes."""
        return self._index.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, like `io.IOBase.seek`."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative position {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Bytes) -> int:  # type: ignore[override]
        """Read into `buffer` from the position, at most to the end of a piece; returns 0 at the end of the file."""
        if self._position >= self.size:
            return 0
        begin = self._load(self._index.piece_at(self._position))
        found = self._piece[self._position - begin :][: len(buffer)]
        memoryview(buffer)[: len(found)] = found
        self._position += len(found)
        return len(found)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._stream.close()
        super().close()

    def _load(self, number: int) -> int:
        begin = self._index.pieces[number][0]
        if number != self._number:
            self._piece = memoryview(read_piece(self._stream, self._index, number))
            self._number = number
        return begin
