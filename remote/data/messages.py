"""Turns one raw message into the form that chat templates take.

Called by `remote.data.records`; pure. Each content of a message gets one name: `content` and `reasoning_content` are
texts, `tool_calls` is a list of OpenAI calls. Keys that are not known here are not changed; `remote.data.fitting` finds
out whether the chat template reads them.
"""

from __future__ import annotations

from typing import Any

from remote.data.values import parse
from remote.shared.errors import RecordError

Message = dict[str, Any]

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "ai": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "tool",
    "ipython": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "function_call": "function_call",
}
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
WEIGHT_KEYS = ("weight", "loss", "train", "loss_mask", "mask", "trainable")
_TEXT_PARTS = (None, "text", "input_text", "output_text")
_REASONING_PARTS = ("reasoning", "thinking")
_CONTENT_KEYS = ("content", "value", "text")
_READ_HERE = ("role", "from", "function_call", *REASONING_KEYS, *WEIGHT_KEYS)


def message_of(turn: Any, number: int, ignored: frozenset[str] = frozenset()) -> tuple[Message, bool | None]:
    """Return message `number` of a record, and its weight or None if it has no weight; raise RecordError."""
    if not isinstance(turn, dict):
        raise RecordError(f"message {number} is a {type(turn).__name__}, not an object")
    if ignored:
        turn = {key: value for key, value in turn.items() if key not in ignored}
    role = _role(turn, number)
    place = next((key for key in _CONTENT_KEYS if key in turn), "content")
    raw = turn.get(place)
    if role == "function_call":
        call = json_if_text(raw, f"the call in message {number}")
        return {"role": "assistant", "content": "", "tool_calls": [_call(call)]}, _weight(turn, number, role)
    content, thought = _text_and_reasoning(raw, number)
    message: Message = {"role": role, "content": content}
    for key, value in turn.items():
        if key not in _READ_HERE and key != place and value is not None:
            message[key] = value
    if role == "assistant":
        _add_calls(message, turn, number)
        _add_reasoning(message, turn, thought, number)
    elif thought:
        raise RecordError(f"message {number} ({role}) has reasoning parts, which only the assistant may have")
    else:
        message.update({key: turn[key] for key in (*REASONING_KEYS, "function_call") if turn.get(key)})
    return message, _weight(turn, number, role)


def _role(turn: Message, number: int) -> str:
    speaker = turn.get("role", turn.get("from"))
    role = ROLES.get(speaker.strip().lower()) if isinstance(speaker, str) else None
    if role is None:
        raise RecordError(f"message {number} has the role {speaker!r}, which is not a known role")
    return role


def _weight(turn: Message, number: int, role: str) -> bool | None:
    """Return True if the message is to be trained on, False if not, None if the message does not say."""
    found = {key: turn[key] for key in WEIGHT_KEYS if turn.get(key) is not None}
    if not found:
        return None
    for key, value in found.items():
        if not isinstance(value, int | float) or value not in (0, 1):
            raise RecordError(f"message {number} has the {key} {value!r}; it can be 0 or 1")
    if len(set(map(bool, found.values()))) > 1:
        raise RecordError(f"message {number} has {' and '.join(found)} that contradict each other")
    weight = bool(next(iter(found.values())))
    if weight and role not in ("assistant", "function_call"):
        raise RecordError(
            f"message {number} ({role}) marks itself for the loss with {next(iter(found))!r}, but only messages of "
            f"the assistant are trained on"
        )
    return weight


def _add_calls(message: Message, turn: Message, number: int) -> None:
    calls = message.pop("tool_calls", None)
    if calls:
        calls = json_if_text(calls, f"the tool calls of message {number}")
        if not isinstance(calls, list):
            raise RecordError(f"the tool calls of message {number} are not a list")
        message["tool_calls"] = [_call(call) for call in calls]
    legacy = turn.get("function_call")
    if not legacy:
        return
    call = _call(json_if_text(legacy, f"the function call of message {number}"))
    if not message.get("tool_calls"):
        message["tool_calls"] = [call]
    elif [one["function"] for one in message["tool_calls"]] != [call["function"]]:
        raise RecordError(f"message {number} has tool_calls and a different function_call")


def _add_reasoning(message: Message, turn: Message, thought: str, number: int) -> None:
    """Put the reasoning, which may be in several places, under `reasoning_content`."""
    found = {"parts of reasoning": thought} if thought else {}
    for key in REASONING_KEYS:
        value = turn.get(key)
        if value:
            if not isinstance(value, str):
                raise RecordError(f"the {key} of message {number} is a {type(value).__name__}, not a text")
            found[key] = value
    found = {key: value for key, value in found.items() if value.strip()}
    if not found:
        return
    if len({value.strip() for value in found.values()}) > 1:
        raise RecordError(f"message {number} has {' and '.join(found)} with different texts")
    reasoning = next(iter(found.values()))
    head, closed, answer = message["content"].partition("</think>")
    if closed:
        if head.replace("<think>", "", 1).strip() != reasoning.strip():
            raise RecordError(f"message {number} has {next(iter(found))} and different thinking in its content")
        message["content"] = answer.lstrip("\n")
    message["reasoning_content"] = reasoning


def _call(call: Any) -> dict[str, Any]:
    """Return an OpenAI tool call. A function with its arguments alone becomes one."""
    if not isinstance(call, dict):
        raise RecordError("a tool call is not an object")
    wrapped = call if "function" in call else {"type": "function", "function": call}
    if not isinstance(wrapped["function"], dict):
        raise RecordError("the function of a tool call is not an object")
    if not isinstance(wrapped["function"].get("name"), str):
        raise RecordError("a tool call does not name its function")
    return wrapped


def _text_and_reasoning(content: Any, number: int) -> tuple[str, str]:
    """Return a message's text and its reasoning. Parts are joined, as in the templates of text models."""
    if content is None:
        return "", ""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        raise RecordError(f"the content of message {number} is a {type(content).__name__}, not a text")
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if not isinstance(part, dict) or kind not in (*_TEXT_PARTS, *_REASONING_PARTS):
            raise RecordError(f"message {number} has parts that are not text ({kind})")
        text = part.get("text")
        if kind in _REASONING_PARTS:
            if texts:
                raise RecordError(f"message {number} has parts of reasoning after its answer")
            thoughts.append(_part_text(part.get(kind) if text is None else text, number))
        else:
            texts.append(_part_text(text, number))
    return "".join(texts), "".join(thoughts)


def _part_text(text: Any, number: int) -> str:
    if not isinstance(text, str):
        raise RecordError(f"message {number} has parts that are not text ({type(text).__name__})")
    return text


def json_if_text(value: Any, what: str) -> Any:
    """Return the object in a JSON text, which columnar sources use for nested objects; any other value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except ValueError as error:
        raise RecordError(f"{what}, a text, cannot be read: {error}") from error
