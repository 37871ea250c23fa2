"""Checks the model folder that a server is asked to load, before anything is started.

Runs on the host, called by `serve`. Reads `config.json` and the headers of the weight files, never a weight. It takes
seconds to find what SGLang finds after minutes, or not at all: SGLang serves a checkpoint that lacks blocks.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remote.model_config import find_number, language_model
from remote.shared.errors import HostError
from remote.shared.shard.header import LONGEST, HeaderError, open_regular, read

_BEFORE_FP4 = re.compile(r"\b(GH200|H[128]00|H20|H800|A100|A800|A40|A10|L40S?|L4|T4|V100)\b")
"""Data centre GPUs of Hopper and older, as the driver names them."""
_BLOCK = re.compile(r"(?:^|\.)layers\.(\d+)\.")
WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def check_model(path: str) -> dict[str, Any]:
    """Return the model's config; raises HostError if the folder, the config or a weight file is missing or damaged."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise HostError(
            f"The inventory's `model` for this host is {path}, but there is no such folder: {_nearest(folder)}.",
            remedy="Mount or copy the model there, or correct `model` in the inventory.",
        )
    config = _config(folder)
    missing = _missing_shards(folder)
    if missing:
        raise HostError(
            f"The model in {path} lacks {len(missing)} of its weight files, {missing[0]} among them.",
            remedy="Finish copying the model to this host.",
        )
    _check_blocks(folder, config)
    return config


def check_format(path: str, config: dict[str, Any], gpu_names: Sequence[str]) -> None:
    """Raise HostError if the weights are kept in a way that a GPU of this server cannot multiply with."""
    older = next((name for name in gpu_names if _BEFORE_FP4.search(name)), None)
    if older is not None and _is_nvfp4(Path(path).expanduser(), config):
        raise HostError(
            f"The model in {path} is quantised to NVFP4, which needs a Blackwell GPU; this server has {older}.",
            remedy="Serve another quantisation of the model here (FP8, INT4, AWQ, MXFP4), or use a B200.",
        )


def _is_nvfp4(folder: Path, config: dict[str, Any]) -> bool:
    """ModelOpt says so in a file of its own or in `config.json`, compressed-tensors in its format."""
    said = [language_model(config).get("quantization_config")]
    with contextlib.suppress(OSError, ValueError):
        said.append(json.loads((folder / "hf_quant_config.json").read_bytes()))
    return "nvfp4" in json.dumps(said).lower()


def depth(config: dict[str, Any]) -> int:
    """Return the number of blocks n; raises HostError if the config (or its `text_config`) does not name it."""
    return _number(config, "num_hidden_layers", "so its boundaries are unknown")


def hidden_size(config: dict[str, Any]) -> int:
    """Return the width H of the residual stream; raises HostError if the config does not name it."""
    return _number(config, "hidden_size", "so the size of its messages is unknown")


def _number(config: dict[str, Any], key: str, so: str) -> int:
    found = find_number(config, key)
    if found is None:
        raise HostError(f"The model's config.json names no {key}, {so}.")
    return found


def _check_blocks(folder: Path, config: dict[str, Any]) -> None:
    """Raise HostError if a block below n has no tensor in any weight file; skipped if names do not tell blocks."""
    names = [name for file in sorted(folder.glob("*.safetensors")) for name in tensor_names(file)]
    found = {int(match.group(1)) for name in names if (match := _BLOCK.search(name))}
    missing = sorted(set(range(depth(config))) - found) if found else []
    if missing:
        raise HostError(
            f"The weights in {folder} lack block {missing[0]} ({len(missing)} of {depth(config)} are missing).",
            remedy="Finish copying the model, or correct its config.json.",
        )


def tensor_names(file: Path) -> list[str]:
    """Return the tensor names in a safetensors file's header; raises HostError if the file is damaged."""
    try:
        with open_regular(file) as stream:
            return list(read(stream, longest=LONGEST).tensors)
    except HeaderError as error:
        raise _damaged(file, f"it {error}") from error


def _damaged(file: Path, why: str) -> HostError:
    return HostError(
        f"The weight file {file} is damaged: {why}.",
        remedy="Copy the model to this host again; the file may be a Git LFS pointer or an error page instead.",
    )


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError as error:
        raise HostError(
            f"The model folder {folder} has no config.json.", remedy="Give the folder that holds the weights."
        ) from error
    except ValueError as error:
        raise HostError(f"{folder / 'config.json'} is not JSON: {error}.") from error
    if not isinstance(config, dict):
        raise HostError(f"{folder / 'config.json'} is not a JSON object.")
    return config


def _missing_shards(folder: Path) -> list[str]:
    """Return the weight files that the index names and the folder lacks; `*.safetensors` if there are none at all."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            wanted = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise HostError(f"{index} cannot be read: {error}.", remedy="Copy the model again.") from error
        return [name for name in wanted if not (folder / name).is_file()]
    if any(True for pattern in WEIGHT_PATTERNS for _ in folder.glob(pattern)):
        return []
    return ["*.safetensors"]


def _nearest(folder: Path) -> str:
    """Return a phrase on the deepest folder of the path that exists: most often a mount is missing on this host."""
    parent = next(parent for parent in folder.parents if parent.is_dir())
    return f"{parent} exists, but {folder.relative_to(parent).parts[0]} in it does not"
