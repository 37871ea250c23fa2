"""Converts hidden states to float8_e4m3fn with one scale for each slot of each token, as speculators 0.9 loads them.

The loader (`FP8Transfer` of hs-connectors) returns `states.to(dtype) * scales.to(dtype)`, in bfloat16 by default. The
writer of hs-connectors makes one scale for a whole token, [L, 1, 1]. The loader takes scales of [L, slots, 1] too, and
with them a slot of small values keeps its precision beside a slot of large values. Every scale is rounded up to a value
of bfloat16, so the loader's conversion does not change the scale. Imports torch; called in the worker processes of
`export`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from remote.data.export.sample import Sample
from remote.shared.errors import HostError
from remote.shared.files import written_aside
from remote.shared.shard.layout import STATES, TOKENS

SCALES = "hidden_states_scales"
ERRORS = "relative_errors"
"""Key in a file's metadata for JSON [[mean, worst], ...], one pair for each slot, over the record's tokens."""
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_SMALLEST_SCALE = torch.finfo(torch.bfloat16).tiny
_ROWS = 256
"""Tokens that are converted at once: 29 MB in float32 for four slots of 7,168 values."""

SlotErrors = tuple[tuple[float, float], ...]
"""Mean and worst relative error of each slot."""


def save_quantized(sample: Sample, path: Path, metadata: dict[str, str]) -> SlotErrors:
    """Write `token_ids`, float8 states and their scales to `path` atomically; return the relative error of each slot.

    The file's metadata has the errors too. Raises HostError if a value is not finite, or too large.
    """
    states, scales, errors = [], [], []
    for rows in sample.states.split(_ROWS):
        packed, scale = quantize(rows)
        states.append(packed)
        scales.append(scale)
        errors.append(relative_errors(rows, dequantize(packed, scale)))
    by_row = torch.cat(errors)
    if not by_row.isfinite().all():
        raise HostError(
            f"Record {sample.index} has values that are not finite, or too large for float8 with a scale.",
            remedy="Check the destination with inv verify --folder.",
        )
    by_slot = tuple(zip(by_row.mean(0).tolist(), by_row.amax(0).tolist(), strict=True))
    tensors = {TOKENS: sample.input_ids, STATES: torch.cat(states), SCALES: torch.cat(scales)}
    with written_aside(path) as aside:
        save_file(tensors, aside, {**metadata, ERRORS: json.dumps(by_slot)})
    return by_slot


def saved_errors(path: Path) -> SlotErrors:
    """Return the errors in the metadata of `path`; raise HostError if `save_quantized` did not write the file."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return tuple((mean, worst) for mean, worst in json.loads(file.metadata()[ERRORS]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise HostError(
            f"{path} exists, but is not a record of this export: {error}.", remedy="Remove the file and export again."
        ) from error


def quantize(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states [L, slots, H] as float8_e4m3fn, and their scales, float32 [L, slots, 1], exact in bfloat16."""
    wide = states.float()
    exact = (wide.abs().amax(-1, keepdim=True) / _LARGEST).clamp(min=_SMALLEST_SCALE)
    scales = ((exact.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)  # rounded up to 8 bits of mantissa
    return (wide / scales).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn), scales


def dequantize(states: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return bfloat16 [L, slots, H], computed like the loader's."""
    return states.to(torch.bfloat16) * scales.to(torch.bfloat16)


def relative_errors(states: torch.Tensor, restored: torch.Tensor) -> torch.Tensor:
    """Return |restored - states| / |states| of every row in every slot, float64 [L, slots]; 0 for a row of zeros."""
    wide = states.double()
    off, norm = (restored.double() - wide).norm(dim=-1), wide.norm(dim=-1)
    return torch.where(norm > 0, off / norm, off)
