"""Row sums: equal bits from torch and numpy for pieces of any size, and another sum for any difference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from remote.capture import rowsums as on_device
from remote.capture.batch import Segment
from remote.capture.rowsums import DeviceSums, salts_of
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.rowsums import CANARY_INDEX, RowSums, plain_sums, row_salts, salted, slot_salts, text

BOUNDARIES = [0, 3, 61]


def bits(states: torch.Tensor) -> np.ndarray:
    raw: np.ndarray = states.contiguous().view(torch.uint8).numpy()
    return raw


def sums_of(states: torch.Tensor, index: int = 5, step: int = 1000, boundaries: list[int] = BOUNDARIES) -> str:
    sums = RowSums(index, boundaries)
    for start in range(0, len(states), step):
        sums.add(bits(states[start : start + step]))
    return text(sums.totals)


@pytest.mark.parametrize("products", [1, 16 << 20])
@pytest.mark.parametrize(("dtype", "hidden"), [(torch.bfloat16, 256), (torch.float32, 64), (torch.float16, 7)])
def test_the_device_and_the_collector_agree_on_every_row(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, hidden: int, products: int
) -> None:
    """A batch with the middle of one record, somebody else's rows, a canary and the start of another record."""
    monkeypatch.setattr(on_device, "PRODUCTS_BYTES", products)
    parts = [(RequestId("n", 9, 0, 900), 300, 40), (None, 0, 7), (RequestId("n", None, 0, 5), 0, 5)]
    parts += [(RequestId("n", (1 << 62) + 1, 0, 50), 0, 20)]
    segments, offset = [], 0
    for request, first, rows in parts:
        if request is not None:
            segments.append(Segment(request, offset, first, rows))
        offset += rows
    states = torch.randn(offset, len(BOUNDARIES), hidden).to(dtype)
    found = DeviceSums(BOUNDARIES).of(states, salts_of(segments, offset)).numpy().view(np.uint64)
    for segment in segments:
        index = CANARY_INDEX if segment.request.index is None else segment.request.index
        place = slice(segment.offset, segment.offset + segment.rows)
        salts = row_salts(index, segment.first, segment.rows)
        np.testing.assert_array_equal(
            found[place], salted(plain_sums(bits(states[place])), salts, slot_salts(BOUNDARIES))
        )


def test_rows_may_come_in_pieces_of_any_size() -> None:
    states = torch.randn(50, 3, 32)
    assert sums_of(states, step=1) == sums_of(states, step=7) == sums_of(states)


def changed(states: torch.Tensor, change: Callable[[torch.Tensor], None]) -> torch.Tensor:
    states = states.clone()
    change(states)
    return states


def exchange_words(states: torch.Tensor) -> None:
    states[4, 1, [2, 30]] = states[4, 1, [30, 2]]


def flip_one_bit(states: torch.Tensor) -> None:
    states.view(torch.int32)[4, 1, 2] ^= 1 << 31


def flip_one_sign_each_in_two_rows(states: torch.Tensor) -> None:
    states[[4, 9], 1, 5] *= -1


def test_a_change_of_any_kind_changes_the_sum_of_its_slot_alone() -> None:
    states = torch.randn(50, 3, 32)
    before = RowSums(5, BOUNDARIES)
    before.add(bits(states))
    for change in (exchange_words, flip_one_bit, flip_one_sign_each_in_two_rows):
        after = RowSums(5, BOUNDARIES)
        after.add(bits(changed(states, change)))
        assert (before.totals != after.totals).tolist() == [False, True, False], change


def test_the_same_bits_in_another_place_have_another_sum() -> None:
    states = torch.randn(50, 3, 32)
    order = torch.arange(50)
    order[[3, 17]] = order[[17, 3]]
    found = {
        sums_of(states),
        sums_of(states, index=6),
        sums_of(states[order]),
        sums_of(states.roll(1, 0)),
        sums_of(states[:, [1, 0, 2]]),
        sums_of(states[:, :, torch.arange(31, -1, -1)]),
        sums_of(states, boundaries=[0, 4, 61]),
    }
    assert len(found) == 7
