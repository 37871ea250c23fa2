"""The model's last norm, to make the state after it from the state before it. Imports torch; reads the model's files.

The other way round loses the row's scale for good, so a `post` state is never turned into a `pre` one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from remote.model_config import language_model
from remote.shared.errors import HostError

_NORM = re.compile(r"(?:[\w.]*\.)?(?:final_)?norm(?:_f)?\.weight")
_NOT_ITS_OWN = ("layers.", "blocks.", "vision", "visual", "audio", "mtp", "nextn")
_ONE_PLUS_WEIGHT = ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_next", "qwen3_5", "qwen3_5_text")
"""Model types whose norm multiplies by 1 + weight."""


@dataclass(frozen=True)
class FinalNormWeight:
    """RMSNorm with this weight, float32 [H]; the 1 of "1 + weight" models is added already."""

    weight: torch.Tensor
    eps: float

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """Return the state after the norm in the dtype of `states`, [L, H]; computed in float32 as servers do."""
        wide = states.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(states.dtype)

    def digest(self) -> str:
        """Weight and eps, as `XXH3@EPS`."""
        return f"{xxhash.xxh3_128_hexdigest(self.weight.numpy().tobytes())}@{self.eps:g}"


def final_norm(folder: Path, hidden_size: int) -> FinalNormWeight:
    """Read the last norm of the model in `folder`; raise HostError where it cannot be told, or is of another kind."""
    config = _config(folder)
    eps = config.get("rms_norm_eps", config.get("layer_norm_epsilon"))
    if not isinstance(eps, float | int) or "rms_norm_eps" not in config:
        raise HostError(
            f"The model in {folder} does not say rms_norm_eps, so its last norm is not known to be an RMSNorm.",
            remedy="Export in a format that takes the state before the norm (speculators).",
        )
    weight = _weight(folder).float()
    if weight.shape != (hidden_size,):
        raise HostError(f"The last norm in {folder} has {list(weight.shape)} weights; the states have {hidden_size}.")
    if config.get("model_type") in _ONE_PLUS_WEIGHT:
        weight = weight + 1
    return FinalNormWeight(weight, float(eps))


def _config(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise HostError(
            f"The model in {folder} could not be read: {error}.", remedy="Give its folder with --model."
        ) from error
    return language_model(values)


def _weight(folder: Path) -> torch.Tensor:
    places = {name: path for name, path in _tensor_places(folder).items() if _is_last_norm(name)}
    if len(places) != 1:
        found = ", ".join(sorted(places)) or "none"
        raise HostError(f"The last norm of the model in {folder} is not clear; candidates: {found}.")
    ((name, path),) = places.items()
    with safe_open(str(path), framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
    return tensor


def _is_last_norm(name: str) -> bool:
    return bool(_NORM.fullmatch(name)) and not any(part in name for part in _NOT_ITS_OWN)


def _tensor_places(folder: Path) -> dict[str, Path]:
    """Every tensor's file, from the index where there is one, else from the files' headers."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        return {name: folder / file for name, file in names.items()}
    places: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(str(path), framework="pt") as file:
                places.update(dict.fromkeys(file.keys(), path))
        except SafetensorError as error:
            raise HostError(f"{path} could not be read: {error}.") from error
    if not places:
        raise HostError(f"There are no .safetensors files in {folder}.", remedy="Give the model's folder with --model.")
    return places
