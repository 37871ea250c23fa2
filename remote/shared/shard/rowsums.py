"""Row sums: a 64-bit sum over the bits of one row in one slot, salted with the row's place. Needs numpy.

Capture computes them on the device (`remote/capture/rowsums.py`), before a row is copied for the first time. The
collector and `verify` compute them again from the bytes on disk. Rows, slots or records that were exchanged, repeated,
shifted, stale or damaged in between have other sums.

A row's words w[j] (64 bits, little-endian) are multiplied by fixed odd numbers m[j] and added: every change of one
word, and every exchange of two different words, changes the sum. A mixing function adds the salt (record index, row
number, boundary), and a slot's digest is the total of its rows' salted sums. All arithmetic is modulo 2**64, so that
rows may come in any order and in pieces of any size. This is no cryptographic signature: it finds faults, not forgery.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from remote.shared.errors import RecordError

NAME = "row_sums"
"""The key in the metadata of a dump or shard: a JSON list with one digest (16 hex digits) for each slot."""
CANARY_INDEX = (1 << 64) - 1
"""The index that salts a canary's rows, because a canary has none of its own."""
WORD_BYTES = 8

STEP = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
"""The mixing function is SplitMix64's: shift, exclusive or, multiply; twice, then a last shift and exclusive or."""

Words = NDArray[np.uint64]


@lru_cache(maxsize=8)
def multipliers(words: int) -> Words:
    """Return the odd numbers m[j] for a row of `words` words: uint64 [words]."""
    return mixed(np.arange(1, words + 1, dtype=np.uint64) * np.uint64(STEP)) | np.uint64(1)


def row_salts(index: int, first: int, rows: int) -> Words:
    """Return the salts of rows [first, first + rows) of record `index`: uint64 [rows]."""
    start = mixed(np.array([index], np.uint64))
    return mixed(start + np.arange(first + 1, first + rows + 1, dtype=np.uint64) * np.uint64(STEP))


def slot_salts(boundaries: Sequence[int]) -> Words:
    """Return the salts of the slots of these boundaries, the same in every pipeline stage: uint64 [slots]."""
    return mixed(np.array(boundaries, np.uint64) + np.uint64(STEP))


def plain_sums(rows: NDArray[np.generic]) -> Words:
    """Return the unsalted sums of contiguous rows [..., hidden]: uint64 [...]."""
    words = rows.view(np.uint8).reshape(-1, rows.shape[-1] * rows.itemsize)
    if rest := -words.shape[1] % WORD_BYTES:  # only for the small models of tests
        words = np.pad(words, ((0, 0), (0, rest)))
    numbers = words.view(np.uint64)
    found: Words = np.einsum("rw,w->r", numbers, multipliers(numbers.shape[1]))
    return found.reshape(rows.shape[:-1])


def salted(sums: Words, rows: Words, slots: Words) -> Words:
    """Return plain sums [rows, slots] salted with `row_salts` [rows] and `slot_salts` [slots]."""
    return mixed((sums ^ slots) + rows[:, None])


def mixed(values: Words) -> Words:
    """Return every value, uint64 of any shape, after SplitMix64's mixing."""
    for shift, factor in MIX:
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(LAST_SHIFT))


def text(totals: Words) -> str:
    """Return the text for the metadata, from the total of each slot's salted sums [slots]."""
    return json.dumps([f"{total:016x}" for total in totals.tolist()])


class RowSums:
    """The row sums of one record, whose rows are added in order."""

    def __init__(self, index: int, boundaries: Sequence[int]) -> None:
        self._index, self._boundaries = index, list(boundaries)
        self._plain: list[Words] = []

    def add(self, rows: NDArray[np.generic]) -> None:
        """Add the next rows [n, slots, hidden], contiguous."""
        self._plain.append(plain_sums(rows))

    @property
    def totals(self) -> Words:
        """Return the total of each slot's salted sums so far: uint64 [slots]."""
        plain = np.concatenate([np.zeros((0, len(self._boundaries)), np.uint64), *self._plain])
        salts = row_salts(self._index, 0, len(plain))
        found: Words = salted(plain, salts, slot_salts(self._boundaries)).sum(axis=0, dtype=np.uint64)
        return found

    def compare(self, claimed: str) -> None:
        """Compare with the sums that capture stored (`NAME` in the metadata); raises RecordError if they differ."""
        found = text(self.totals)
        if found == claimed:
            return
        try:
            digests = json.loads(claimed)
            differing = [found != said for found, said in zip(json.loads(found), digests, strict=True)]
        except (ValueError, TypeError, RecursionError):
            raise RecordError(f"Its row sums are {claimed!r:.80} instead of {len(self._boundaries)} digests.") from None
        boundary = self._boundaries[differing.index(True)] if True in differing else self._boundaries[0]
        raise RecordError(
            f"The rows of boundary {boundary} are not those that the forward pass left: their row sums differ."
        )
