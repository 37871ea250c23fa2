"""Where the bf16 states of a shard lie in its bytes, and how it is cut into pieces. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from remote.shared import foreign

PIECE_BYTES = 16 << 20
"""Plain bytes of a piece: 292 rows of four slots of 7,168; the base then costs 0.2%."""
_MOST_HEADER_BYTES = 16 << 20


@dataclass(frozen=True)
class Layout:
    """States from byte `begin` to byte `end`, rows of `channels` bf16 values; none where `channels` is 0."""

    begin: int = 0
    end: int = 0
    channels: int = 0

    def cut(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Cut the bytes [start, stop) of the shard into pieces (begin, end, channels), whole rows where that can be."""
        row = 2 * self.channels
        first = _up(max(start, self.begin) - self.begin, row) + self.begin if row else stop
        last = (min(stop, self.end) - self.begin) // row * row + self.begin if row else stop
        if last <= first:
            yield from _pieces(start, stop, PIECE_BYTES, 0)
            return
        yield from _pieces(start, first, PIECE_BYTES, 0)
        yield from _pieces(first, last, max(1, PIECE_BYTES // row) * row, self.channels)
        yield from _pieces(last, stop, PIECE_BYTES, 0)


def layout_of(head: bytes) -> Layout:
    """The layout of the safetensors file that begins with `head` (header included); of any other file, none.

    The largest BF16 tensor counts; its rows are all of its dimensions but the first.
    """
    try:
        (length,) = struct.unpack_from("<Q", head)
        header = foreign.loads(head[8 : 8 + length])
        tensors = [entry for name, entry in header.items() if name != "__metadata__" and entry["dtype"] == "BF16"]
        largest = max(tensors, key=lambda entry: int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]))
        begin, end = (8 + length + int(offset) for offset in largest["data_offsets"])
        channels = 1
        for dimension in largest["shape"][1:]:
            channels *= int(dimension)
    except (struct.error, ValueError, LookupError, TypeError, AttributeError):
        return Layout()
    return Layout(begin, end, channels) if 0 <= begin < end and 0 < channels <= PIECE_BYTES // 2 else Layout()


def header_bytes(first: bytes) -> int:
    """How many bytes of the file `layout_of` needs, from its first 8; 8 where it is no safetensors file."""
    (length,) = struct.unpack("<Q", first) if len(first) == 8 else (0,)
    return 8 + length if length <= _MOST_HEADER_BYTES else 8


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _pieces(start: int, stop: int, step: int, channels: int) -> Iterator[tuple[int, int, int]]:
    for begin in range(start, stop, step):
        yield begin, min(begin + step, stop), channels
