"""Parses JSON from outside of Roost: every fault in it is a ValueError. Both sides, standard library."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str | bytes | bytearray) -> Any:
    """Return the value of `text` like `json.loads`, but raise ValueError instead of RecursionError for deep nesting."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
