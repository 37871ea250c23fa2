"""Reads a model's `config.json`, including wrapped language models (Kimi-K2.5, Llama 4). Host side, pure.

Used for numbers of the language model by servers, facts, bench, parity and the data verbs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SECTIONS = ("text_config", "language_config")


def language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with its `text_config` merged over it, because the language model's values count."""
    return {**config, **(config.get("text_config") or {})}


def find_number(config: Mapping[str, Any], key: str) -> int | None:
    """The whole number `key`, at the top or else in a section of a wrapped language model; None if it is unsaid."""
    for section in (config, *(config.get(name) for name in _SECTIONS)):
        value = section.get(key) if isinstance(section, Mapping) else None
        if isinstance(value, int):
            return value
    return None
