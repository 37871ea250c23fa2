"""Checks JSON values of records, from any kind of file.

Called in the worker processes of `prepare`; pure. NaN, infinities, lone surrogates, integers beyond 64 bits and nesting
beyond `MOST_LEVELS` are refused in JSON lines, JSON arrays, Parquet and Arrow files, and in JSON text inside a column.
"""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

MOST_LEVELS = 128
"""Levels of nested objects and lists. Chat data has about ten; a template that writes JSON fails at some hundreds."""
_BEYOND_64_BITS = 2.0**63
_SCALARS = {int, bool, type(None)}


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text; raise ValueError, which says what is wrong with the text."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        # Without the place in the text, because records are counted by their reason.
        raise ValueError(f"it is not JSON: {error.msg.partition(': line ')[0]}") from error
    if check(value):
        # orjson gives a float for an integer beyond 64 bits; the standard library gives an integer.
        json.loads(text, parse_int=_within_64_bits)
    return value


def check(value: Any) -> bool:
    """Raise ValueError if `value` has something that JSON lacks, or is nested too deeply.

    Return True if `value` has a float that may have been an integer of more than 64 bits.
    """
    level, depth, suspicious = [value], 0, False
    while level:
        depth += 1
        if depth > MOST_LEVELS:
            raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                below += item.values()
            elif kind is list:
                # Fast path for a tokenized record, which has lists of thousands of integers.
                if not set(map(type, item)) <= _SCALARS:
                    below += item
            elif kind is float:
                if not math.isfinite(item):
                    raise ValueError(f"it has {item}, which is not a JSON value")
                suspicious = suspicious or abs(item) >= _BEYOND_64_BITS
        level = below
    return suspicious


def _within_64_bits(digits: str) -> int:
    value = int(digits) if len(digits) < 21 else 1 << 65
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError("it has an integer beyond 64 bits")
    return value


def without_nulls(value: Any) -> Any:
    """Return `value` without the keys whose value is None.

    Arrow gives every struct of a column the keys of all structs, so the arguments of a tool call have the keys of other
    records' calls with nulls. A null of the source itself cannot be distinguished from them.
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list) and not set(map(type, value)) <= _SCALARS | {str, float}:
        return [without_nulls(item) for item in value]
    return value
