"""The model's last norm, which turns `pre` states into `post` states. Imports torch; reads the model's files.

A norm loses the scale of a row, so a `post` state cannot become a `pre` state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from remote.model_config import language_model, norm_adds_one
from remote.parity.checkpoint import Checkpoint
from remote.shared.errors import HostError

_NORM = re.compile(r"(?:[\w.]*\.)?(?:final_)?norm(?:_f)?\.weight")
_NOT_ITS_OWN = ("layers.", "blocks.", "vision", "visual", "audio", "mtp", "nextn")


@dataclass(frozen=True)
class FinalNormWeight:
    """RMSNorm with this weight, float32 [H], which includes the 1 of models that compute "1 + weight"."""

    weight: torch.Tensor
    eps: float

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """Return the state after the norm, [L, H] in the dtype of `states`, computed in float32 as in servers."""
        wide = states.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(states.dtype)

    def digest(self) -> str:
        """Return the digest of weight and eps, as `XXH3@EPS`."""
        return f"{xxhash.xxh3_128_hexdigest(self.weight.numpy().tobytes())}@{self.eps:g}"


def final_norm(folder: Path, hidden_size: int) -> FinalNormWeight:
    """Return the last norm of the model in `folder`; raise HostError if it is not found, or is not an RMSNorm."""
    checkpoint = Checkpoint(folder)
    config = language_model(checkpoint.config)
    eps = config.get("rms_norm_eps", config.get("layer_norm_epsilon"))
    if not isinstance(eps, float | int) or "rms_norm_eps" not in config:
        raise HostError(
            f"The model in {folder} does not say rms_norm_eps, so its last norm is not known to be an RMSNorm.",
            remedy="Export with --format speculators, which takes the state before the norm.",
        )
    weight = _weight(checkpoint).float()
    if weight.shape != (hidden_size,):
        raise HostError(
            f"The last norm of the model in {folder} has {list(weight.shape)} weights, but the states "
            f"have {hidden_size} values."
        )
    if norm_adds_one(config):
        weight = weight + 1
    return FinalNormWeight(weight, float(eps))


def _weight(checkpoint: Checkpoint) -> torch.Tensor:
    names = [name for name in checkpoint.names() if _is_last_norm(name)]
    if len(names) != 1:
        found = ", ".join(sorted(names)) or "none"
        raise HostError(f"Roost cannot tell which weight in {checkpoint.folder} is the last norm; candidates: {found}.")
    return checkpoint.read(names[0])


def _is_last_norm(name: str) -> bool:
    return bool(_NORM.fullmatch(name)) and not any(part in name for part in _NOT_ITS_OWN)
