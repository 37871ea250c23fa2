"""Splits an answer into the parts of a message: reasoning, content and tool calls. Pure.

Models write calls in many ways: as JSON objects with a name and arguments (Hermes and Qwen, Llama 3, Mistral), as a
name with JSON arguments (Kimi, DeepSeek, gpt-oss), or as XML whose values are text (GLM-4.5, MiniMax-M2, Qwen3-Coder).
A tool's result in the data is used only if the model made the same call. A call in any other form never gets a result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from remote.data.messages import Message

Call = tuple[str, str]
"""A function's name and its arguments as JSON with sorted keys."""
_MARKS = (
    *("<tool_call>", "[TOOL_CALLS]", "<|tool_call", "<function", "<invoke name=", "<|python_tag|>"),
    *("functions.", "<\uff5ctool"),
)
"""The beginnings of calls in the forms of several models."""
_DECODER = json.JSONDecoder()

_NAMED = re.compile(
    r"(?:functions\.([^\s:<]+):\d+\s*<\|tool_call_argument_begin\|>"  # Kimi-K2
    r"|<\uff5ctool\u2581call\u2581begin\uff5c>(?:function<\uff5ctool\u2581sep\uff5c>)?"  # DeepSeek R1
    r"([^<\n]+)(?:<\uff5ctool\u2581sep\uff5c>|(?=\n)))"  # and V3.1
    r"\s*(?:```json\s*)?"
)
"""A function's name before its arguments as JSON."""
_XML = re.compile(
    r"<tool_call>\s*([^\s<{]+)\s*((?:<arg_key>.*?)?)</tool_call>"  # GLM-4.5 and later
    r"|<invoke name=\"([^\"]+)\">(.*?)</invoke>"  # MiniMax-M2
    r"|<function=([^>]+)>(.*?)</function>",  # Qwen3-Coder
    re.DOTALL,
)
_XML_VALUE = re.compile(
    r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>"
    r"|<parameter name=\"([^\"]+)\">(.*?)</parameter>"
    r"|<parameter=([^>]+)>(.*?)</parameter>",
    re.DOTALL,
)
_HARMONY = "<|channel|>"
_HARMONY_PART = re.compile(
    r"(?P<head>[^|]*<\|channel\|>.*?)<\|message\|>(?P<text>.*?)(?:<\|(?:end|return|call)\|>|$)", re.DOTALL
)
_HARMONY_CALL = re.compile(r"to=functions\.([^\s<]+)")


def makes(text: str, message: Message | None) -> bool:
    """Return whether an answer makes exactly the calls of the data's turn, in the same order."""
    wanted = _calls_of(message)
    found = _calls_in(text)
    if found:
        return found == wanted
    return list(_xml_calls(text)) == [(name, _loosely(json.loads(arguments))) for name, arguments in wanted]


def calls(message: Message | None) -> bool:
    """Return whether a turn of the data calls a tool."""
    return bool(_calls_of(message))


def may_call(text: str) -> bool:
    """Return whether an answer seems to call a tool, in any form."""
    return bool(_calls_in(text)) or any(mark in text for mark in _MARKS)


def message_of(text: str) -> Message:
    """Return the assistant's message for an answer, as the chat template takes it.

    Only gpt-oss's Harmony channels are split, because its template refuses them in the content: `analysis` is
    reasoning, `commentary` with a recipient is a call, every other channel is content.
    """
    message: Message = {"role": "assistant", "content": text}
    if _HARMONY not in text:
        return message
    thinking: list[str] = []
    content: list[str] = []
    called: list[Message] = []
    for part in _HARMONY_PART.finditer(text):
        head, said = part["head"], part["text"]
        if call := _HARMONY_CALL.search(head):
            called.append({"type": "function", "function": {"name": call[1], "arguments": said}})
        else:
            (thinking if f"{_HARMONY}analysis" in head else content).append(said)
    message["content"] = "\n".join(content)
    if thinking:
        message["reasoning_content"] = "\n".join(thinking)
    if called:
        message["tool_calls"] = called
    return message


def _calls_of(message: Message | None) -> list[Call]:
    return [call for one in (message or {}).get("tool_calls") or [] if (call := _call(one.get("function")))]


def _calls_in(text: str) -> list[Call]:
    """Return the calls with JSON arguments in an answer, in order."""
    if _HARMONY in text:
        return _calls_of(message_of(text))
    named = list(_NAMED.finditer(text))
    if named:
        return [call for found in named if (call := _named(found, text))]
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


def _named(found: re.Match[str], text: str) -> Call | None:
    try:
        arguments, _ = _DECODER.raw_decode(text, found.end())
    except ValueError:
        return None
    return _call({"name": (found[1] or found[2]).strip(), "arguments": arguments})


def _xml_calls(text: str) -> Iterator[Call]:
    for found in _XML.finditer(text):
        name, inner = _matched(found)
        values = dict(map(_matched, _XML_VALUE.finditer(inner)))
        yield name.strip(), _loosely({key.strip(): said.strip("\n") for key, said in values.items()})


def _matched(found: re.Match[str]) -> tuple[str, str]:
    """The two groups of the alternative that matched."""
    first, second = (group for group in found.groups() if group is not None)
    return first, second


def _loosely(arguments: dict[str, Any]) -> str:
    """Return arguments in a form in which the text `5` equals the number 5, which XML does not distinguish."""
    return json.dumps({key: _value(value) for key, value in arguments.items()}, sort_keys=True)


def _value(said: Any) -> Any:
    if not isinstance(said, str):
        return said
    try:
        return json.loads(said)
    except ValueError:
        return said


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
