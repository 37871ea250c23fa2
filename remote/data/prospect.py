"""The verb `prospect`: returns a host's model shape and digest, disk, RAM disk and memory, for the laptop's plan.

Runs on a host; writes only the cache of the model's digest. Imports no slow module.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from remote.context import Context
from remote.model_config import language_model
from remote.model_digest import model_digest
from remote.shared.errors import HostError
from remote.shared.messages.plan import Generation, ModelShape, Prospect, ProspectRequest
from remote.shared.messages.run import DTYPES
from remote.shared.paths import Workdir


def prospect(request: ProspectRequest, context: Context) -> Prospect:
    """Return the facts of this host; raises HostError if the model is missing or its config is incomplete."""
    disk = os.statvfs(_existing(context.workdir.root))
    ramdisk = os.statvfs(_existing(Path(request.dump_dir).expanduser()))
    return Prospect(
        model=model_shape(Path(request.model).expanduser(), context.workdir),
        generation=generation(Path(request.model).expanduser()),
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        ramdisk_total_bytes=ramdisk.f_blocks * ramdisk.f_frsize,
        ramdisk_free_bytes=ramdisk.f_bavail * ramdisk.f_frsize,
        memory_available_bytes=psutil.virtual_memory().available,
        cores=psutil.cpu_count() or 1,
    )


def generation(folder: Path) -> Generation:
    """Return a model's own sampling defaults; none if its file is missing or cannot be read."""
    try:
        values = json.loads((folder / "generation_config.json").read_bytes())
    except (OSError, ValueError):
        return Generation()
    found = {name: values.get(name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    greedy = {"temperature": 0.0} if values.get("do_sample") is False else {}
    try:
        return Generation(**{**found, "max_tokens": values.get("max_new_tokens"), **greedy})
    except ValidationError:
        return Generation()


def model_shape(folder: Path, workdir: Workdir) -> ModelShape:
    """Return a model's shape from its `config.json` (its text part, if it is multimodal), and a digest of its files."""
    path = folder / "config.json"
    try:
        content = path.read_bytes()
        values = json.loads(content)
    except OSError as error:
        raise HostError(
            f"The inventory's `model` for this host is {folder}, and its config.json could not be read: "
            f"{error.strerror}.",
            remedy="Mount or copy the model there, or correct `model` in the inventory.",
        ) from error
    except ValueError as error:
        raise HostError(f"{path} is not JSON.") from error
    text = language_model(values)
    return ModelShape(
        path=str(folder),
        digest=model_digest(folder, workdir),
        hidden_size=_number(text, "hidden_size", path),
        blocks=_number(text, "num_hidden_layers", path),
        dtype=DTYPES.get(str(text.get("dtype") or text.get("torch_dtype")), "BF16"),
        vocab_size=_number(text, "vocab_size", path),
        context_length=_number(text, "max_position_embeddings", path),
    )


def _number(values: dict[str, Any], key: str, path: Path) -> int:
    value = values.get(key)
    if not isinstance(value, int):
        raise HostError(f"{path} has no {key}.")
    return value


def _existing(path: Path) -> Path:
    """Return `path` if it exists, else the nearest existing folder above it."""
    while not path.exists():
        path = path.parent
    return path
