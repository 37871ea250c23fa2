"""What no row of hidden states can be, judged in one place for capture, the collector and `verify`. Needs numpy.

A value that is not finite, a row of zeros, a row with one magnitude throughout, and rows that are all alike although
their tokens are not: no forward pass leaves these. Zeros are right at boundary 0 alone, where a row is an embedding
(that of a padding token is often zero).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.shared.errors import RecordError
from remote.shared.shard.header import Span
from remote.shared.shard.rowsums import RowSums

_BITS: dict[str, tuple[Any, int, int]] = {
    # dtype: unsigned type of its size, mask without the sign, smallest masked value that is not finite
    "BF16": (np.uint16, 0x7FFF, 0x7F80),
    "F16": (np.uint16, 0x7FFF, 0x7C00),
    "F32": (np.uint32, 0x7FFFFFFF, 0x7F800000),
}
_NOT_FINITE = "holds a value that is not finite"
_ZEROS = "is all zeros"
TILE_BYTES = 512 << 10
"""Rows that are looked at together: what a core's second-level cache holds along with the scratch space."""


def check_norms(norms: NDArray[np.float32], boundaries: Sequence[int]) -> None:
    """Judge rows by their norms [rows, slots], which are not finite if a value of the row is not.

    Raises RecordError naming the first row and the boundary.
    """
    _refuse(~np.isfinite(norms), 0, boundaries, _NOT_FINITE)
    _refuse((norms == 0) & _may_not_be_zero(boundaries), 0, boundaries, _ZEROS)


class RowCheck:
    """Looks at the rows of one record's states, in their order, and adds up their sums."""

    def __init__(self, states: Span, boundaries: Sequence[int], index: int) -> None:
        """`states` is the tensor [rows, slots, hidden] of record `index`; its slots are the `boundaries`."""
        if states.dtype not in _BITS:
            raise RecordError(f"States of dtype {states.dtype:.40} cannot be judged; {', '.join(_BITS)} can.")
        self._type, self._mask, self._limit = _BITS[states.dtype]
        _, slots, self._hidden = states.shape
        self.row_bytes = slots * self._hidden * np.dtype(self._type).itemsize
        self.sums = RowSums(index, boundaries)
        """Of the rows so far; to be compared with what capture claimed."""
        self._boundaries = list(boundaries)
        self._nonzero = _may_not_be_zero(boundaries)
        self.seen = 0
        """Rows so far."""
        self._first: NDArray[Any] | None = None
        self._alike = list(range(slots))
        """Slots whose rows have all been the same so far."""

    def look(self, piece: memoryview) -> None:
        """Check every value of the next rows; raises RecordError naming the first wrong row."""
        rows = self._rows(piece)
        tile = max(TILE_BYTES // self.row_bytes, 1)
        for start in range(0, len(rows), tile):
            magnitudes = rows[start : start + tile] & self._type(self._mask)
            self._refuse(magnitudes.max(axis=2) >= self._limit, start, _NOT_FINITE)
        self.take(piece)

    def take(self, piece: memoryview) -> None:
        """Check the next rows (whole ones, as raw bytes); raises RecordError naming the first wrong row.

        That their values are finite is left to the sums: those are capture's only if the rows are, and capture has
        seen that they are finite.
        """
        rows = self._rows(piece)
        self.sums.add(rows)
        self._refuse_uniform(rows)
        if self._first is None and len(rows):
            self._first = rows[0].copy()
        self._alike = [slot for slot in self._alike if self._is_alike(rows, slot)]
        self.seen += len(rows)

    def finish(self, tokens: NDArray[Any]) -> None:
        """All rows were looked at, and `tokens` [rows] are theirs; raises RecordError if rows are all alike.

        Equal tokens have equal rows, so a record of one repeated token is right.
        """
        if self.seen > 1 and self._alike and bool((tokens != tokens[0]).any()):
            raise RecordError(f"All rows of boundary {self._boundaries[self._alike[0]]} are the same.")

    def _rows(self, piece: memoryview) -> NDArray[Any]:
        """[n, slots, hidden], as bits."""
        return np.frombuffer(piece, self._type).reshape(-1, len(self._boundaries), self._hidden)

    def _refuse_uniform(self, rows: NDArray[Any]) -> None:
        """Refuse rows with one magnitude throughout; for nearly every row, three values tell that it has several."""
        mask = self._type(self._mask)
        few = rows[:, :, [0, self._hidden // 2, -1]] & mask
        uniform = (few[:, :, 0] == few[:, :, 1]) & (few[:, :, 0] == few[:, :, 2])
        if not uniform.any():
            return
        magnitudes = rows[uniform] & mask
        uniform[uniform] = magnitudes.min(axis=1) == magnitudes.max(axis=1)
        zero = uniform & (few[:, :, 0] == 0)
        self._refuse(zero & self._nonzero, 0, _ZEROS)
        if self._hidden > 1:
            self._refuse(uniform & ~zero, 0, "has one magnitude throughout")

    def _is_alike(self, rows: NDArray[Any], slot: int) -> bool:
        """The last row differs as a rule, so that the others are hardly ever compared."""
        if self._first is None:
            return True
        first = self._first[slot]
        return bool((rows[-1, slot] == first).all()) and bool((rows[:, slot] == first).all())

    def _refuse(self, wrong: NDArray[np.bool_], start: int, what: str) -> None:
        _refuse(wrong, self.seen + start, self._boundaries, what)


def _may_not_be_zero(boundaries: Sequence[int]) -> NDArray[np.bool_]:
    """bool [slots]."""
    return np.array([boundary != 0 for boundary in boundaries], np.bool_)


def _refuse(wrong: NDArray[np.bool_], first: int, boundaries: Sequence[int], what: str) -> None:
    """Raise RecordError for the first True of `wrong` [rows, slots]; its rows begin at row `first` of the record."""
    if wrong.any():
        row, slot = divmod(int(np.flatnonzero(wrong)[0]), wrong.shape[1])
        raise RecordError(f"Row {first + row} of boundary {boundaries[slot]} {what}.")
