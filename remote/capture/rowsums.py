"""Computes row sums on the device, as `remote/shared/shard/rowsums.py` defines them. Inside SGLang.

torch has no uint64, but signed 64-bit arithmetic wraps around on CPUs and GPUs, so the bits are the same as numpy's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional
from numpy.typing import NDArray

from remote.capture.batch import Segment
from remote.shared.shard.rowsums import (
    CANARY_INDEX,
    LAST_SHIFT,
    MIX,
    WORD_BYTES,
    multipliers,
    row_salts,
    slot_salts,
)

PRODUCTS_BYTES = 16 << 20
"""Bytes of products on the device at a time; a GPU keeps this many in its L2 cache until they are added."""


class DeviceSums:
    """Computes salted row sums of gathered passes. Used by one thread, on one stream."""

    def __init__(self, boundaries: Sequence[int]) -> None:
        """`boundaries` are the slots of the gathered states."""
        self._slots = _signed(slot_salts(boundaries))
        self._multipliers = torch.empty(0, dtype=torch.int64)
        self._products = torch.empty(0, dtype=torch.int64)

    def of(self, states: torch.Tensor, salts: torch.Tensor) -> torch.Tensor:
        """Return int64 [rows, slots] of `states` [rows, slots, hidden]; `salts` int64 [rows] are on the same device."""
        words = _words(states)
        self._prepare(words)
        sums = torch.empty(words.shape[:2], dtype=torch.int64, device=words.device)
        most = len(self._products)
        for start in range(0, len(words), most):
            part = words[start : start + most]
            products = torch.mul(part, self._multipliers, out=self._products[: len(part)])
            torch.sum(products, dim=-1, out=sums[start : start + most])
        return _mixed(sums.bitwise_xor_(self._slots).add_(salts[:, None]))

    def _prepare(self, words: torch.Tensor) -> None:
        """Create the multipliers and room for products on the device of `words`."""
        _, slots, width = words.shape
        if self._multipliers.device == words.device and len(self._multipliers) == width:
            return
        self._multipliers = _signed(multipliers(width)).to(words.device)
        self._slots = self._slots.to(words.device)
        rows = max(PRODUCTS_BYTES // (WORD_BYTES * slots * width), 1)
        self._products = torch.empty((rows, slots, width), dtype=torch.int64, device=words.device)


def salts_of(segments: Sequence[Segment], rows: int) -> torch.Tensor:
    """Return the salts of a forward pass's rows, int64 [rows] in host memory; rows without a record have 0."""
    salts = np.zeros(rows, np.uint64)
    for segment in segments:
        index = CANARY_INDEX if segment.request.index is None else segment.request.index
        salts[segment.offset : segment.offset + segment.rows] = row_salts(index, segment.first, segment.rows)
    return _signed(salts)


def _words(states: torch.Tensor) -> torch.Tensor:
    """Return the rows' bits as int64 [rows, slots, words]; an incomplete last word is padded with zeros."""
    raw = states.view(torch.uint8)
    if rest := -raw.shape[-1] % WORD_BYTES:  # only for the small models of tests
        raw = torch.nn.functional.pad(raw, (0, rest))
    return raw.view(torch.int64)


def _mixed(values: torch.Tensor) -> torch.Tensor:
    for shift, factor in MIX:
        values = values.bitwise_xor(_shifted(values, shift)).mul_(_wrapped(factor))
    return values.bitwise_xor_(_shifted(values, LAST_SHIFT))


def _shifted(values: torch.Tensor, shift: int) -> torch.Tensor:
    """Return the values shifted right and filled with zeros; torch itself fills with the sign."""
    return (values >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def _wrapped(number: int) -> int:
    """Return the signed number with these 64 bits."""
    return number - (1 << 64) if number >> 63 else number


def _signed(values: NDArray[np.uint64]) -> torch.Tensor:
    return torch.from_numpy(values.view(np.int64).copy())
