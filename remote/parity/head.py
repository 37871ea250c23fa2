"""A model's last norm and output head, read from its checkpoint without the rest of it. Host side.

Called by the collector for run-time parity. Reads only the tensors that it needs; they stay mapped to the files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from remote.model_config import language_model
from remote.shared.errors import HostError

_NORM = "model.norm.weight"
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
_INDEX = "model.safetensors.index.json"
_PLAIN = (torch.float32, torch.bfloat16, torch.float16)
_WITHOUT = "Set `parity_rate: 0` for this host in the inventory and assign the run again; canary and row sums remain."


@dataclass(frozen=True)
class Head:
    """What turns a row of the final slot into logits, in the model's own dtype."""

    norm_weight: torch.Tensor
    """[hidden]"""
    eps: float
    lm_head: torch.Tensor
    """[vocabulary, hidden]"""

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.dtype


def load_head(model: Path) -> Head:
    """Read the head of the checkpoint in folder `model`; a wrapped language model's (Kimi-K2.5) as well.

    Raises HostError naming what the checkpoint lacks.
    """
    try:
        config: dict[str, Any] = json.loads((model / "config.json").read_bytes())
        config = language_model(config)
        names = _names(model)
        norm = _tensor(model, names, _NORM)
        head = _tensor(model, names, _EMBEDDING if _is_tied(config, names) else _HEAD)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise HostError(f"The head of the model in {model} cannot be read: {error}.") from error
    if head.dtype not in _PLAIN:
        raise _quantised(model, f"of dtype {str(head.dtype).removeprefix('torch.')}")
    return Head(norm, float(config.get("rms_norm_eps", 1e-6)), head)


def _quantised(model: Path, how: str) -> HostError:
    what = f"The output head of the model in {model} is quantised ({how})"
    return HostError(
        f"{what}: the server's logprobs cannot be computed again from its records' final slots.", remedy=_WITHOUT
    )


def _is_tied(config: dict[str, Any], names: dict[str, str]) -> bool:
    return bool(config.get("tie_word_embeddings")) and not any(name.endswith(_HEAD) for name in names)


def _names(model: Path) -> dict[str, str]:
    """Tensor name to file name, over one file or many."""
    if (model / _INDEX).exists():
        weights: dict[str, str] = json.loads((model / _INDEX).read_bytes())["weight_map"]
        return weights
    found: dict[str, str] = {}
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path.name)
    return found


def _tensor(model: Path, names: dict[str, str], wanted: str) -> torch.Tensor:
    # A wrapped language model's names have a prefix; the shortest name is not a draft head's.
    found = sorted((name for name in names if name == wanted or name.endswith(f".{wanted}")), key=len)
    packed = sorted(name for name in names if wanted == _HEAD and f".{name}".rpartition(".")[0].endswith(".lm_head"))
    if not found and packed:
        raise _quantised(model, f"kept as {', '.join(packed)}")
    if not found:
        raise HostError(f"The checkpoint in {model} has no tensor {wanted}.")
    with safe_open(model / names[found[0]], framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(found[0])
        return tensor
