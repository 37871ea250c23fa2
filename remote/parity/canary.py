"""Compares a canary's dump with its hook's file: each configured slot must equal its boundary. Host side.

Called by `serve` before a server counts as ready, and by the collector when it repeats the canary under load. Both
files come from the same forward pass, with the same batch and expert routing, so any difference is a fault of capture.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from remote.shared.errors import HostError, RecordError

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""The largest |difference| / |row| of a row. One rounding more than the model's own moves a bf16 row by 2e-3."""

NORMED = -1
"""Stands for the state after the last norm, as the state that is nearest to a slot."""


@dataclass(frozen=True)
class SlotCheck:
    """The comparison of one slot of a canary's dump."""

    slot: int
    boundary: int
    error: float
    """The largest relative difference of a row from the boundary."""
    row: int
    """The row with that difference."""
    nearest: int
    """The boundary that the slot as a whole is closest to; `NORMED` for the state after the last norm."""
    passed: bool

    def __str__(self) -> str:
        if self.passed:
            return f"slot {self.slot} is boundary {self.boundary} within {self.error:.1e}"
        nearest = "the state after the last norm" if self.nearest == NORMED else f"boundary {self.nearest}"
        closest = "" if self.nearest == self.boundary else f"; as a whole it is closest to {nearest}"
        wrong = f"slot {self.slot} should be boundary {self.boundary} but differs by {self.error:.1e} in row {self.row}"
        return wrong + closest


@dataclass(frozen=True)
class CanaryCheck:
    """The comparison of all slots of a canary's dump."""

    slots: list[SlotCheck]

    @property
    def passed(self) -> bool:
        return all(slot.passed for slot in self.slots)

    def require(self) -> None:
        """Raise HostError naming the slots that differ from their boundaries."""
        wrong = [str(slot) for slot in self.slots if not slot.passed]
        if wrong:
            raise HostError(
                f"The canary was captured wrongly: {'; '.join(wrong)}.",
                remedy="Do not extract with this server: its SGLang version or another patch changes the model's code.",
            )


def check_canary(dump: Path, canary: Sequence[Path], *, tolerance: float | None = None) -> CanaryCheck:
    """Compare each slot of `dump` with its boundary in the hook's files `canary` (one, or one for each stage).

    Raises RecordError if the files cannot be compared: a boundary is missing, or has other rows.
    """
    with safe_open(dump, framework="pt") as file:
        metadata = file.metadata() or {}
        states, tokens = file.get_tensor("hidden_states"), file.get_tensor("token_ids")
    boundaries = json.loads(metadata["boundaries"])
    truth, normed = _read(canary, tokens)
    missing = [k for k in boundaries if k not in truth]
    if missing:
        raise RecordError(f"The canary's hook saw no boundary {missing[0]}.")
    limit = TOLERANCES[states.dtype] if tolerance is None else tolerance
    wanted = [truth[k] for k in boundaries]
    if metadata.get("final") == "post":
        if normed is None:
            raise RecordError("The canary's hook did not see the last norm.")
        wanted[-1] = normed
    candidates = {**truth, **({NORMED: normed} if normed is not None else {})}
    return CanaryCheck(
        [
            _check_slot(slot, boundary, states[:, slot].float(), wanted[slot].float(), candidates, limit)
            for slot, boundary in enumerate(boundaries)
        ]
    )


def _check_slot(
    slot: int,
    boundary: int,
    found: torch.Tensor,
    wanted: torch.Tensor,
    candidates: dict[int, torch.Tensor],
    limit: float,
) -> SlotCheck:
    if found.shape != wanted.shape:
        raise RecordError(f"Slot {slot} of the canary is {list(found.shape)}, but the hook saw {list(wanted.shape)}.")
    errors = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp_min(1e-30)
    errors = torch.nan_to_num(errors, nan=float("inf"))
    row = int(errors.argmax())
    nearest = min(candidates, key=lambda k: float((found - candidates[k].float()).norm().nan_to_num(torch.inf)))
    error = float(errors[row])
    return SlotCheck(slot, boundary, error, row, nearest, error <= limit)


def _read(canary: Sequence[Path], tokens: torch.Tensor) -> tuple[dict[int, torch.Tensor], torch.Tensor | None]:
    """Return the state [rows, hidden] of each boundary, and the state after the last norm."""
    truth: dict[int, torch.Tensor] = {}
    normed = None
    for path in canary:
        with safe_open(path, framework="pt") as file:
            if not torch.equal(file.get_tensor("token_ids"), tokens):
                raise RecordError(f"The canary's hook saw other tokens in {path.name} than the dump holds.")
            states = file.get_tensor("boundaries")
            for place, boundary in enumerate(json.loads(file.metadata()["boundaries"])):
                truth[boundary] = states[:, place]
            if "normed" in file.keys():  # noqa: SIM118 - not a dict
                normed = file.get_tensor("normed")
    return truth, normed
