"""Raw records of any known shape to one of two: a conversation, or tokens with their mask.

Pure functions; called in the worker processes of `prepare`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from remote.shared import foreign
from remote.shared.errors import RecordError

Message = dict[str, Any]

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "tool",
    "ipython": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "function_call",
}
_PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("question", "answer"),
    ("query", "response"),
)


@dataclass(frozen=True)
class Conversation:
    """Messages as a chat template takes them, and the tools that were on offer."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Tokens:
    """A record that is tokenized already: ids and a 0/1 mask of the same length."""

    input_ids: list[int] = field(repr=False)
    loss_mask: list[int] = field(repr=False)


def normalize(raw: Any) -> Conversation | Tokens:
    """Return `raw` in a known form; raise RecordError with what is wrong with it."""
    if not isinstance(raw, dict):
        raise RecordError(f"it is a {type(raw).__name__}, not an object")
    if raw.get("input_ids") is not None:
        return _tokens(raw)
    tools = _json_if_text(raw.get("tools"), "tools") or None
    if raw.get("messages") is not None:
        return _conversation(_json_if_text(raw["messages"], "messages"), tools)
    if raw.get("conversations") is not None:
        turns = _json_if_text(raw["conversations"], "conversations")
        if raw.get("system") and isinstance(turns, list):
            turns = [{"from": "system", "value": raw["system"]}, *turns]
        return _conversation(turns, tools)
    for prompt, response in _PAIRS:
        if raw.get(prompt) is not None and raw.get(response) is not None:
            return _pair(raw, prompt, response, tools)
    raise RecordError(
        f"its keys ({', '.join(sorted(map(str, raw))) or 'none'}) are none of: messages; conversations; "
        "prompt and response; input_ids and loss_mask"
    )


def _tokens(raw: dict[str, Any]) -> Tokens:
    if raw.get("loss_mask") is None:
        raise RecordError("it has input_ids and no loss_mask")
    ids, mask = raw["input_ids"], raw["loss_mask"]
    if not isinstance(ids, list) or not isinstance(mask, list):
        raise RecordError("its input_ids and loss_mask are not both lists")
    if len(ids) != len(mask):
        raise RecordError(f"it has {len(ids)} input_ids and a loss_mask of {len(mask)}")
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise RecordError("its input_ids are not all integers")
    if not all(isinstance(value, int | float) and value in (0, 1) for value in mask):
        raise RecordError("its loss_mask has values other than 0 and 1")
    return Tokens(ids, [int(value) for value in mask])


def _pair(raw: dict[str, Any], prompt: str, response: str, tools: Any) -> Conversation:
    """A prompt and its answer, each a text or (as TRL has it) a list of messages."""
    asked = raw[prompt]
    if isinstance(asked, str) and isinstance(raw.get("input"), str) and raw["input"]:
        asked = f"{asked}\n\n{raw['input']}"
    before = asked if isinstance(asked, list) else [{"role": "user", "content": asked}]
    answer = raw[response]
    after = answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}]
    system = [{"role": "system", "content": raw["system"]}] if raw.get("system") else []
    return _conversation([*system, *before, *after], tools)


def _conversation(turns: Any, tools: Any) -> Conversation:
    if not isinstance(turns, list) or not turns:
        raise RecordError("it has no messages")
    if tools is not None and not isinstance(tools, list):
        raise RecordError("its tools are not a list")
    messages = [_message(turn, number) for number, turn in enumerate(turns)]
    if not any(message["role"] == "assistant" for message in messages):
        raise RecordError("it has no assistant turn, so its loss mask would be all 0")
    return Conversation(messages, tools)


def _message(turn: Any, number: int) -> Message:
    if not isinstance(turn, dict):
        raise RecordError(f"message {number} is a {type(turn).__name__}, not an object")
    speaker = turn.get("role", turn.get("from"))
    role = _ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise RecordError(f"message {number} has the role {speaker!r}, which is not a known one")
    content = turn["content"] if "content" in turn else turn.get("value", turn.get("text"))
    if role == "function_call":
        call = _json_if_text(content, f"the call in message {number}")
        return {"role": "assistant", "content": "", "tool_calls": [_call(call)]}
    message: Message = {"role": role, "content": _text(content, number)}
    for key, value in turn.items():
        if key not in ("role", "from", "content", "value", "text") and value is not None:
            message[key] = value
    if message.get("tool_calls"):
        if not isinstance(message["tool_calls"], list):
            raise RecordError(f"the tool calls of message {number} are not a list")
        message["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    elif "tool_calls" in message:
        del message["tool_calls"]
    return message


def _call(call: Any) -> dict[str, Any]:
    """An OpenAI tool call; a bare function with its arguments is wrapped."""
    if not isinstance(call, dict):
        raise RecordError("a tool call is not an object")
    wrapped = call if "function" in call else {"type": "function", "function": call}
    if not isinstance(wrapped["function"], dict):
        raise RecordError("the function of a tool call is not an object")
    return wrapped


def _text(content: Any, number: int) -> str:
    """A message's text; parts of type text are joined, as no text model's template shows them otherwise."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        if all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            return "".join(part["text"] for part in content)
        raise RecordError(f"message {number} has parts that are not text")
    raise RecordError(f"the content of message {number} is a {type(content).__name__}, not a text")


def _json_if_text(value: Any, what: str) -> Any:
    """Columnar sources keep nested objects as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return foreign.loads(value)
    except ValueError as error:
        raise RecordError(f"{what} is a text that is not JSON") from error
