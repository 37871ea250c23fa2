"""A checkpoint's tensors by name, quantised ones as the plain matrices that they stand for. Host side; needs torch.

Called by the head of run-time parity, the exports' last norm and `verify --model`. Tensors are read one at a time, and
stay mapped to their files if they are kept plain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from remote.model_config import language_model
from remote.parity import dequantise
from remote.shared.errors import HostError

_INDEX = "model.safetensors.index.json"
_PLAIN = (torch.float32, torch.bfloat16, torch.float16)
_BESIDE = (
    *("weight_scale_inv", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx", "input_scale"),
    *("weight_global_scale", "input_global_scale", "weight_scale_2"),
    *("qzeros", "scales", "g_idx", "_scales"),
)
"""Endings of tensors that only say how others are kept."""


class Checkpoint:
    """The safetensors files of a model folder."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        """`device` is where tensors are read to. Raises HostError if the folder holds no readable checkpoint."""
        self.folder = folder
        self._device = device
        try:
            self.config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
            self.files = _files(folder)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise HostError(
                f"The model in {folder} could not be read: {error}.", remedy="Give its folder with --model."
            ) from error
        if not self.files:
            raise HostError(
                f"There are no .safetensors files in {folder}.", remedy="Give the model's folder with --model."
            )

    @property
    def quantisation(self) -> Mapping[str, Any]:
        """What `config.json` says of it, at the top or in the language model's part; empty if the weights are plain."""
        said = language_model(self.config).get("quantization_config")
        return said if isinstance(said, Mapping) else {}

    def read(self, name: str) -> torch.Tensor:
        """The plain weight `name` (`….weight`), dequantised to float32 if it is kept in another way.

        Raises KeyError for a name that is not there in any way, HostError for a way that is not known.
        """
        module = name.removesuffix(".weight")
        if f"{module}.weight_packed" in self.files:
            return self._packed(module)
        if f"{module}.qweight" in self.files:
            return self._awq(module)
        if f"{name}_blocks" in self.files:
            return dequantise.mxfp4(self._tensor(f"{name}_blocks"), self._tensor(f"{name}_scales"))
        tensor = self._tensor(name)
        return tensor if tensor.dtype in _PLAIN else self._fp8(module, tensor)

    def has(self, name: str) -> bool:
        """Whether `read` would find a weight of this name."""
        return name in set(self.names())

    def names(self) -> Iterator[str]:
        """The plain name of every weight, in the files' order."""
        for name in self.files:
            if not name.endswith(_BESIDE):
                yield name.replace(".weight_packed", ".weight").replace(".qweight", ".weight").removesuffix("_blocks")

    def _tensor(self, name: str) -> torch.Tensor:
        path = self.files[name]
        try:
            with safe_open(str(path), framework="pt", device=self._device) as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise HostError(f"{path} could not be read: {error}.") from error
        return tensor

    def _packed(self, module: str) -> torch.Tensor:
        packed = self._tensor(f"{module}.weight_packed")
        if packed.dtype != torch.int32 or f"{module}.weight_zero_point" in self.files:
            raise self._unknown(f"{module}.weight_packed")
        shape, scale = self._tensor(f"{module}.weight_shape"), self._tensor(f"{module}.weight_scale")
        return dequantise.pack_quantized(packed, scale, shape, self._bits())

    def _bits(self) -> int:
        groups = self.quantisation.get("config_groups") or {}
        found = {int(group["weights"]["num_bits"]) for group in groups.values() if group.get("weights")}
        return found.pop() if len(found) == 1 else 4

    def _awq(self, module: str) -> torch.Tensor:
        if self.quantisation.get("quant_method") != "awq":
            raise self._unknown(f"{module}.qweight")
        return dequantise.awq(*(self._tensor(f"{module}.{part}") for part in ("qweight", "qzeros", "scales")))

    def _fp8(self, module: str, weight: torch.Tensor) -> torch.Tensor:
        scale = next((one for end in _BESIDE[:2] if (one := f"{module}.{end}") in self.files), None)
        if weight.element_size() != 1 or not weight.is_floating_point():
            raise self._unknown(f"{module}.weight of {str(weight.dtype).removeprefix('torch.')}")
        if scale is None:
            return weight.float()
        block = self.quantisation.get("weight_block_size") or (128, 128)
        return dequantise.fp8_blocks(weight, self._tensor(scale), (int(block[0]), int(block[1])))

    def _unknown(self, what: str) -> HostError:
        return HostError(
            f"The model in {self.folder} keeps {what} in a way that Roost cannot read"
            " (it reads compressed-tensors' packed integers, AWQ, FP8 and MXFP4)."
        )


def _files(folder: Path) -> dict[str, Path]:
    """Every tensor's file, from the index if there is one, else from the files' headers."""
    if (folder / _INDEX).is_file():
        names: dict[str, str] = json.loads((folder / _INDEX).read_bytes())["weight_map"]
        return {name: folder / file for name, file in names.items()}
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    return found
