"""Reads a model's last norm and output head from its checkpoint. Host side.

Called by the collector for the parity check. A quantised head is read as the plain matrix that it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from remote.model_config import language_model, norm_adds_one
from remote.parity.checkpoint import Checkpoint
from remote.shared.errors import HostError

_NORM = "model.norm.weight"
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
_WRAPPED = "language_model."
"""A wrapper's checkpoint has this before the name (Kimi-K2.5) or in the middle of it (Qwen3-VL)."""
_WITHOUT = "Set `parity_rate: 0` for this host in the inventory and assign the run again; canaries and row sums remain."


@dataclass(frozen=True)
class Head:
    """The weights that turn a row of the final slot into logits, in the model's own dtype."""

    norm_weight: torch.Tensor
    """[hidden]; the 1 of models that multiply by 1 + weight is added already."""
    eps: float
    lm_head: torch.Tensor
    """[vocabulary, hidden]"""

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.dtype


def load_head(model: Path) -> Head:
    """Return the head of the checkpoint in folder `model`, even of a wrapped language model (Kimi-K2.5, Qwen3-VL).

    Raises HostError naming what the checkpoint lacks.
    """
    try:
        checkpoint = Checkpoint(model)
        config = language_model(checkpoint.config)
        names = list(checkpoint.names())
        norm = checkpoint.read(_found(model, names, _NORM))
        tied = bool(config.get("tie_word_embeddings")) and not any(name.endswith(_HEAD) for name in names)
        head = checkpoint.read(_found(model, names, _EMBEDDING if tied else _HEAD))
    except KeyError as error:
        raise HostError(f"The checkpoint in {model} lacks {error}, which tells how its head is kept.") from error
    except HostError as error:
        why = f"The head of the model in {model} cannot be read: {error.message}"
        raise HostError(why, remedy=error.remedy or _WITHOUT) from error
    if head.dtype == torch.float32 and norm.dtype != torch.float32:
        head = head.to(norm.dtype)  # a quantised head: the server multiplies in the model's dtype
    norm = norm.float() + 1 if norm_adds_one(config) else norm
    return Head(norm, float(config.get("rms_norm_eps", 1e-6)), head)


def _found(model: Path, names: list[str], wanted: str) -> str:
    """Return the full name of a tensor: wrappers have prefixes, and the shortest name is not a draft head's."""
    plain = {name: name.replace(_WRAPPED, "") for name in names}
    found = sorted((name for name, short in plain.items() if short == wanted or short.endswith(f".{wanted}")), key=len)
    if not found:
        raise HostError(f"The checkpoint in {model} has no tensor {wanted}.")
    return found[0]
