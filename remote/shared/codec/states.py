"""Finds the bf16 states in the bytes of a shard, and cuts the shard into pieces. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from remote.shared.shard import header
from remote.shared.shard.header import HeaderError

PIECE_BYTES = 16 << 20
"""Plain bytes of a piece: 292 rows of four slots of 7,168. The base then costs 0.2 % of the piece."""
_MOST_HEADER_BYTES = 16 << 20


@dataclass(frozen=True)
class StatesRange:
    """The states fill the bytes [begin, end) with rows of `channels` bf16 values; there are none if `channels` is 0."""

    begin: int = 0
    end: int = 0
    channels: int = 0

    def cut(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Cut the bytes [start, stop) of the shard into pieces (begin, end, channels), of whole rows if possible."""
        row = 2 * self.channels
        first = _up(max(start, self.begin) - self.begin, row) + self.begin if row else stop
        last = (min(stop, self.end) - self.begin) // row * row + self.begin if row else stop
        if last <= first:
            yield from _pieces(start, stop, PIECE_BYTES, 0)
            return
        yield from _pieces(start, first, PIECE_BYTES, 0)
        yield from _pieces(first, last, max(1, PIECE_BYTES // row) * row, self.channels)
        yield from _pieces(last, stop, PIECE_BYTES, 0)


def find_states(head: bytes) -> StatesRange:
    """Return where the states lie in the safetensors file that begins with `head`, which includes the header.

    The largest BF16 tensor is taken; a row is one entry of its first dimension. Any other file has no states.
    """
    try:
        spans = header.parse(head, None, longest=_MOST_HEADER_BYTES).tensors.values()
    except HeaderError:
        return StatesRange()
    states = max((span for span in spans if span.dtype == "BF16"), key=lambda span: span.end - span.begin, default=None)
    if states is None or states.begin == states.end:
        return StatesRange()
    channels = math.prod(states.shape[1:])
    return StatesRange(states.begin, states.end, channels) if 0 < channels <= PIECE_BYTES // 2 else StatesRange()


def header_bytes(first: bytes) -> int:
    """Return how many bytes `find_states` needs, from the file's first 8; 8 if the file is no safetensors file."""
    try:
        return 8 + header.length_of(first, _MOST_HEADER_BYTES)
    except HeaderError:
        return 8


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _pieces(start: int, stop: int, step: int, channels: int) -> Iterator[tuple[int, int, int]]:
    for begin in range(start, stop, step):
        yield begin, min(begin + step, stop), channels
