"""Capture's settings as environment variables, which the supervisor sets and capture reads inside SGLang.

Needs no torch. If `SGLANG_HS_DUMP_DIR` is unset, capture is dormant, whatever else is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from remote.shared.errors import UsageError
from remote.shared.messages.server import CaptureSpec
from remote.shared.shard.boundaries import FORM, are_rising

DUMP_DIR = "SGLANG_HS_DUMP_DIR"
LAYERS = "SGLANG_HS_LAYERS"
FINAL = "SGLANG_HS_FINAL"
HIGH_WATER = "SGLANG_HS_HIGH_WATER"
PINNED = "SGLANG_HS_PINNED"
WRITERS = "SGLANG_HS_WRITERS"

VARIABLES = (DUMP_DIR, LAYERS, FINAL, HIGH_WATER, PINNED, WRITERS)
"""All of capture's variables; a server without capture is started without them."""

PATIENCE_SECONDS = 100.0
"""How long a forward pass waits for the collector; after that, passes fail until rows move again."""

DEFAULT_WRITERS = 4
_DEFAULTS = CaptureSpec(layers=[])


@dataclass(frozen=True)
class Settings:
    """What one SGLang process captures, and its limits."""

    dump_dir: Path
    layers: tuple[int, ...]
    """The auxiliary boundaries in slot order; boundary n is added once the model's depth is known."""
    final: Literal["pre", "post"]
    high_water_bytes: int
    """The largest size of the dump directory; at this mark, the forward pass waits."""
    pinned_bytes: int
    """The largest size of this process's staging memory, which is pinned if there is a GPU."""
    writers: int
    """The number of threads that write dumps."""


def environment(spec: CaptureSpec) -> dict[str, str]:
    """Return the environment variables that make an SGLang process capture as `spec` says."""
    return {
        DUMP_DIR: spec.dump_dir,
        LAYERS: ",".join(str(layer) for layer in spec.layers),
        FINAL: spec.final,
        HIGH_WATER: str(spec.high_water_bytes),
        PINNED: str(spec.pinned_bytes),
    }


def settings(variables: Mapping[str, str] | None = None) -> Settings | None:
    """Return this process's settings; None if capture is dormant. Raises UsageError, which names the wrong variable."""
    variables = os.environ if variables is None else variables
    directory = variables.get(DUMP_DIR, "")
    if not directory:
        return None
    if not Path(directory).is_absolute():
        raise UsageError(f"{DUMP_DIR}={directory!r} is not an absolute path.")
    return Settings(
        dump_dir=Path(directory),
        layers=_layers(variables.get(LAYERS, "")),
        final=_final(variables.get(FINAL, "pre")),
        high_water_bytes=_positive(variables, HIGH_WATER, _DEFAULTS.high_water_bytes),
        pinned_bytes=_positive(variables, PINNED, _DEFAULTS.pinned_bytes),
        writers=_positive(variables, WRITERS, DEFAULT_WRITERS),
    )


def _layers(text: str) -> tuple[int, ...]:
    try:
        layers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise UsageError(f"{LAYERS}={text!r} is not a list of whole numbers such as 3,31,59.") from error
    if not are_rising(layers):
        raise UsageError(f"{LAYERS}={text!r} are not {FORM}.")
    return layers


def _final(text: str) -> Literal["pre", "post"]:
    if text == "pre":
        return "pre"
    if text == "post":
        return "post"
    raise UsageError(f"{FINAL}={text!r} is neither pre nor post.")


def _positive(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{name}={text!r} is not a whole number above 0.")
    return int(text)
