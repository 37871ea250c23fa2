"""Impossible rows are found with their number and boundary, and odd but possible rows pass."""

from __future__ import annotations

import numpy as np
import pytest

from remote.shared.errors import RecordError
from remote.shared.shard import rows as judged
from remote.shared.shard.header import Span
from remote.shared.shard.rows import RowCheck, check_norms

ROWS, SLOTS, HIDDEN = 30, 3, 16
BOUNDARIES = [0, 2, 5]
TOKENS = np.arange(ROWS)


def states() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((ROWS, SLOTS, HIDDEN), dtype=np.float32)


def look(values: np.ndarray, tokens: np.ndarray = TOKENS, step: int = 7) -> None:
    check = RowCheck(Span("F32", values.shape, 0, values.nbytes), BOUNDARIES, 7)
    for start in range(0, len(values), step):
        check.look(memoryview(values[start : start + step].tobytes()))
    check.finish(tokens)


@pytest.mark.parametrize("tile", [1, 1000, 1 << 20])
@pytest.mark.parametrize("step", [1, 7, ROWS])
def test_the_first_wrong_row_is_named_however_the_record_is_cut(
    monkeypatch: pytest.MonkeyPatch, tile: int, step: int
) -> None:
    monkeypatch.setattr(judged, "TILE_BYTES", tile)
    values = states()
    look(values, step=step)
    values[23, 1, 4] = np.inf
    values[25, 0, 4] = np.nan
    with pytest.raises(RecordError, match="Row 23 of boundary 2 holds a value that is not finite"):
        look(values, step=step)


def test_zeros_are_accepted_only_at_boundary_0() -> None:
    values = states()
    values[4, 0] = 0
    look(values)
    check_norms(np.linalg.norm(values, axis=2), BOUNDARIES)
    values[6, 2] = 0
    for judge in (look, lambda all_rows: check_norms(np.linalg.norm(all_rows, axis=2), BOUNDARIES)):
        with pytest.raises(RecordError, match="Row 6 of boundary 5 is all zeros"):
            judge(values)


def test_a_norm_that_is_not_finite_counts_as_a_value_that_is_not_finite() -> None:
    norms = np.ones((ROWS, SLOTS), np.float32)
    norms[3, 2] = np.nan
    with pytest.raises(RecordError, match="Row 3 of boundary 5 holds a value that is not finite"):
        check_norms(norms, BOUNDARIES)


def test_identical_rows_are_wrong_unless_their_tokens_are_identical() -> None:
    values = states()
    values[:, 2] = values[0, 2]
    with pytest.raises(RecordError, match="All rows of boundary 5 are the same"):
        look(values)
    look(values, tokens=np.full(ROWS, 9))
    values[-1, 2] += 1
    look(values)


def test_an_unsupported_dtype_is_refused() -> None:
    with pytest.raises(RecordError, match="F64 cannot be judged"):
        RowCheck(Span("F64", (1, 1, 1), 0, 8), [1], 0)
