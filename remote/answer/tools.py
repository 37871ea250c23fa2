"""The tools that an answer calls, so that a result from the data is used for the very same call alone. Pure.

Models write calls in many ways; most of them (Hermes and Qwen, Llama 3, Mistral, DeepSeek V3.1's arguments apart) as
JSON objects with a name and arguments. Whatever cannot be read as such is no call that the data has a result for.
"""

from __future__ import annotations

import json
from typing import Any

from remote.data.messages import Message

Call = tuple[str, str]
"""A function's name and its arguments as JSON with sorted keys."""
_MARKS = ("<tool_call>", "[TOOL_CALLS]", "<|tool_call", "<function", "<|python_tag|>", "functions.", "<\uff5ctool")
"""What begins a call in some model's way of writing."""
_DECODER = json.JSONDecoder()


def calls_in(text: str) -> list[Call]:
    """The calls that an answer makes, in order."""
    found: list[Call] = []
    place = text.find("{")
    while place >= 0:
        try:
            value, stop = _DECODER.raw_decode(text, place)
        except ValueError:
            stop = place + 1
        else:
            call = _call(value)
            found += [call] if call else []
            stop = stop if call else place + 1
        place = text.find("{", stop)
    return found


def calls_of(message: Message | None) -> list[Call]:
    """The calls that a turn of the data makes."""
    calls = (message or {}).get("tool_calls") or []
    return [call for one in calls if (call := _call(one.get("function")))]


def may_call(text: str) -> bool:
    """Whether an answer calls a tool in whatever way."""
    return bool(calls_in(text)) or any(mark in text for mark in _MARKS)


def _call(value: Any) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return None
    return (value["name"], json.dumps(arguments, sort_keys=True)) if isinstance(arguments, dict) else None
