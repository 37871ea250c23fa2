"""Checks rows of hidden states, for capture, the collector and `verify`. Needs numpy.

A correct forward pass never leaves a value that is not finite, a row of zeros, a row of a single magnitude, or equal
rows for different tokens. Zeros are allowed only at boundary 0, where a row is an embedding (a padding token's is
often zero).
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
"""Bytes of rows that are checked together; with the scratch space they fit into a core's L2 cache."""


def check_norms(norms: NDArray[np.float32], boundaries: Sequence[int]) -> None:
    """Check rows by their norms, float32 [rows, slots]: a norm is not finite if a value of the row is not.

    Raises RecordError naming the first wrong row and its boundary.
    """
    _refuse(~np.isfinite(norms), 0, boundaries, _NOT_FINITE)
    _refuse((norms == 0) & _may_not_be_zero(boundaries), 0, boundaries, _ZEROS)


class RowCheck:
    """Checks the rows of one record, in order, and computes their row sums."""

    def __init__(self, states: Span, boundaries: Sequence[int], index: int) -> None:
        """`states` is the tensor [rows, slots, hidden] of record `index`; its slots are the `boundaries`."""
        if states.dtype not in _BITS:
            raise RecordError(f"States of dtype {states.dtype:.40} cannot be judged; {', '.join(_BITS)} can.")
        self._type, self._mask, self._limit = _BITS[states.dtype]
        _, slots, self._hidden = states.shape
        self.row_bytes = slots * self._hidden * np.dtype(self._type).itemsize
        self.sums = RowSums(index, boundaries)
        """The sums of the rows so far, to be compared with the sums that capture stored."""
        self._boundaries = list(boundaries)
        self._nonzero = _may_not_be_zero(boundaries)
        self.seen = 0
        """The number of rows so far."""
        self._first: NDArray[Any] | None = None
        self._alike = list(range(slots))
        """The slots whose rows have all been equal so far."""

    def look(self, piece: memoryview) -> None:
        """Check every value of the next rows (raw bytes); raises RecordError, which names the first wrong row."""
        rows = self._rows(piece)
        tile = max(TILE_BYTES // self.row_bytes, 1)
        for start in range(0, len(rows), tile):
            magnitudes = rows[start : start + tile] & self._type(self._mask)
            self._refuse(magnitudes.max(axis=2) >= self._limit, start, _NOT_FINITE)
        self.take(piece)

    def take(self, piece: memoryview) -> None:
        """Check the next rows (whole ones, as raw bytes); raises RecordError naming the first wrong row.

        Whether values are finite is left to the row sums: they agree with capture's only if the rows are the same, and
        capture has checked that its rows are finite.
        """
        rows = self._rows(piece)
        self.sums.add(rows)
        self._refuse_uniform(rows)
        if self._first is None and len(rows):
            self._first = rows[0].copy()
        self._alike = [slot for slot in self._alike if self._is_alike(rows, slot)]
        self.seen += len(rows)

    def finish(self, tokens: NDArray[Any]) -> None:
        """Finish after the last row, with the record's `tokens` [rows]; raises RecordError if all rows are equal.

        Equal tokens have equal rows, so a record of one repeated token passes.
        """
        if self.seen > 1 and self._alike and bool((tokens != tokens[0]).any()):
            raise RecordError(f"All rows of boundary {self._boundaries[self._alike[0]]} are the same.")

    def _rows(self, piece: memoryview) -> NDArray[Any]:
        """Return the rows as bits [n, slots, hidden]."""
        return np.frombuffer(piece, self._type).reshape(-1, len(self._boundaries), self._hidden)

    def _refuse_uniform(self, rows: NDArray[Any]) -> None:
        """Raise RecordError for a row of a single magnitude; three values suffice to clear almost every row."""
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
        """Return whether all rows of a slot are equal; the last row usually differs, which saves the comparison."""
        if self._first is None:
            return True
        first = self._first[slot]
        return bool((rows[-1, slot] == first).all()) and bool((rows[:, slot] == first).all())

    def _refuse(self, wrong: NDArray[np.bool_], start: int, what: str) -> None:
        _refuse(wrong, self.seen + start, self._boundaries, what)


def _may_not_be_zero(boundaries: Sequence[int]) -> NDArray[np.bool_]:
    """Return for each slot whether zeros are wrong there: bool [slots]."""
    return np.array([boundary != 0 for boundary in boundaries], np.bool_)


def _refuse(wrong: NDArray[np.bool_], first: int, boundaries: Sequence[int], what: str) -> None:
    """Raise RecordError for the first True in `wrong` [rows, slots], whose first row is the record's row `first`."""
    if wrong.any():
        row, slot = divmod(int(np.flatnonzero(wrong)[0]), wrong.shape[1])
        raise RecordError(f"Row {first + row} of boundary {boundaries[slot]} {what}.")
