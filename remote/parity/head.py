"""Reads a model's last norm and output head from its checkpoint. Host side.

<<<<<<< HEAD
Called by the collector for run-time parity. A quantised head is taken as the plain matrix that it stands for.
=======
Called by the collector for the parity check. Reads only the needed tensors, which stay mapped to the files.
>>>>>>> c2f82e6 (Messages, logs, bench, facts, parity, storage and tune on the host in plain English)
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
<<<<<<< HEAD
_WITHOUT = "Set `parity_rate: 0` for this host in the inventory and assign the run again; canary and row sums remain."
=======
_INDEX = "model.safetensors.index.json"
_PLAIN = (torch.float32, torch.bfloat16, torch.float16)
_WITHOUT = "Set `parity_rate: 0` for this host in the inventory and assign the run again; canaries and row sums remain."
>>>>>>> c2f82e6 (Messages, logs, bench, facts, parity, storage and tune on the host in plain English)


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
    """Return the head of the checkpoint in folder `model`, even of a wrapped language model (Kimi-K2.5).

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
        raise HostError(f"The head cannot be read. {error.message}", remedy=error.remedy or _WITHOUT) from error
    if head.dtype == torch.float32 and norm.dtype != torch.float32:
        head = head.to(norm.dtype)  # a quantised head: the server multiplies in the model's dtype
    norm = norm.float() + 1 if norm_adds_one(config) else norm
    return Head(norm, float(config.get("rms_norm_eps", 1e-6)), head)


<<<<<<< HEAD
def _found(model: Path, names: list[str], wanted: str) -> str:
    """A wrapped language model's names have a prefix; the shortest name is not a draft head's."""
=======
def _quantised(model: Path, how: str) -> HostError:
    what = f"The output head of the model in {model} is quantised ({how})"
    return HostError(
        f"{what}, so the server's logprobs cannot be computed again from the final slots.", remedy=_WITHOUT
    )


def _is_tied(config: dict[str, Any], names: dict[str, str]) -> bool:
    return bool(config.get("tie_word_embeddings")) and not any(name.endswith(_HEAD) for name in names)


def _names(model: Path) -> dict[str, str]:
    """Return the file name of each tensor, for a checkpoint of one or many files."""
    if (model / _INDEX).exists():
        weights: dict[str, str] = json.loads((model / _INDEX).read_bytes())["weight_map"]
        return weights
    found: dict[str, str] = {}
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path.name)
    return found


def _tensor(model: Path, names: dict[str, str], wanted: str) -> torch.Tensor:
    # The names of a wrapped language model have a prefix; the shortest name is not a draft head's.
>>>>>>> c2f82e6 (Messages, logs, bench, facts, parity, storage and tune on the host in plain English)
    found = sorted((name for name in names if name == wanted or name.endswith(f".{wanted}")), key=len)
    if not found:
        raise HostError(f"The checkpoint in {model} has no tensor {wanted}.")
    return found[0]
