"""Cuts a pool's work into chunks of about equally many tokens. Pure.

A chunk is a range of consecutive places in the work. The cut depends only on the lengths and the size, so every process
that knows the work knows the chunks, and a claim needs to name only a number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Chunks:
    """The places [starts[c], starts[c + 1]) are chunk c."""

    starts: Sequence[int]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def places(self, chunk: int) -> range:
        """Return the places that belong to a chunk."""
        return range(self.starts[chunk], self.starts[chunk + 1])

    def of(self, place: int) -> int:
        """Return the chunk that a place belongs to."""
        return bisect_right(self.starts, place) - 1


def cut(lengths: Iterable[int], tokens: int) -> Chunks:
    """Cut work of such lengths into chunks that each end as soon as they have `tokens` tokens; no chunk is empty."""
    starts, filled, place = [0], 0, 0
    for place, length in enumerate(lengths, 1):
        filled += length
        if filled >= tokens:
            starts.append(place)
            filled = 0
    if starts[-1] != place:
        starts.append(place)
    return Chunks(starts)
