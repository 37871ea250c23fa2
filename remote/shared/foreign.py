"""Parses JSON from outside of Roost: every fault in it is a ValueError. Both sides, standard library."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str | bytes | bytearray) -> Any:
    """As `json.loads`; text that is nested too deeply is a ValueError too, not a RecursionError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
