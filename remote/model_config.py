"""Reads a model's `config.json`, including wrapped language models (Kimi-K2.5, Llama 4). Host side, pure.

Used for numbers of the language model by servers, facts, bench, parity and the data verbs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SECTIONS = ("text_config", "language_config")
_ONE_PLUS_WEIGHT = {"gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_next"}
"""Types of models whose RMSNorm multiplies by 1 + weight; so do all of Qwen3.5."""


def language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with its `text_config` merged over it, because the language model's values count."""
    return {**config, **(config.get("text_config") or {})}


def find_number(config: Mapping[str, Any], key: str) -> int | None:
    """Return the integer `key`, from the top or from a section of a wrapped language model; None if there is none."""
    for section in (config, *(config.get(name) for name in _SECTIONS)):
        value = section.get(key) if isinstance(section, Mapping) else None
        if isinstance(value, int):
            return value
    return None


def norm_adds_one(config: Mapping[str, Any]) -> bool:
    """Return whether the language model's RMSNorm multiplies by 1 + weight instead of by weight."""
    kind = str(language_model(config).get("model_type", ""))
    return kind in _ONE_PLUS_WEIGHT or kind.startswith("qwen3_5")
