"""Turns raw records of any known form into a conversation, or into tokens with their mask.

Pure functions; called in the worker processes of `prepare`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from remote.data.messages import REASONING_KEYS, Message, json_if_text, message_of
from remote.shared.errors import RecordError

CONVERSATION_KEYS = ("messages", "conversations", "conversation")
_PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("question", "answer"),
    ("query", "response"),
    ("input", "output"),
)
_SYSTEM_KEYS = ("system", "system_prompt")


@dataclass(frozen=True)
class Reading:
    """A person's settings for reading records."""

    chosen: bool = False
    """Whether the chosen answer of preference pairs is read. Otherwise such pairs are refused."""
    keys: tuple[tuple[str, str], ...] = ()
    """(part, key) pairs, with part one of prompt, answer, system, reasoning, messages, tools. If there are any, records
    are read only by these keys.
    """
    ignored: frozenset[str] = frozenset()
    """Keys of messages that a person wants to leave out."""
    prompts: bool = False
    """Whether the records are prompts: no assistant turn is needed, and tokenized records are refused."""


@dataclass(frozen=True)
class Conversation:
    """Messages as a chat template takes them, and the tools that the model was offered."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    muted: frozenset[int] = frozenset()
    """Numbers of the messages whose weight is 0, which are not under the loss."""


class LeftOutError(RecordError):
    """The source marks the record as not to be used."""


@dataclass(frozen=True)
class Tokens:
    """A tokenized record: ids and a 0/1 mask of the same length."""

    input_ids: list[int] = field(repr=False)
    loss_mask: list[int] = field(repr=False)


def normalize(raw: Any, reading: Reading = Reading()) -> Conversation | Tokens:
    """Return `raw` as a conversation or tokens; raise RecordError, which says what is wrong with the record."""
    if not isinstance(raw, dict):
        raise RecordError(f"it is a {type(raw).__name__}, not an object")
    if reading.keys:
        return _by_own_keys(raw, reading)
    if raw.get("input_ids") is not None:
        if reading.prompts:
            raise RecordError("it has input_ids, but a prompt must be text, which the model's own template renders")
        return _tokens(raw)
    for key in CONVERSATION_KEYS:
        if raw.get(key) is not None:
            return _conversation(raw, json_if_text(raw[key], key), reading)
    for prompt, response in _PAIRS:
        if raw.get(prompt) is not None and raw.get(response) is not None:
            extra = raw.get("input") if prompt != "input" else None
            return _pair(raw, raw[prompt], raw[response], reading, extra)
    if raw.get("chosen") is not None:
        return _chosen(raw, reading)
    asked = next((raw[prompt] for prompt, _ in _PAIRS if reading.prompts and raw.get(prompt) is not None), None)
    if asked is not None:
        return _conversation(raw, _as_turns(asked, "user"), reading)
    raise RecordError(
        f"its keys ({', '.join(sorted(map(str, raw))) or 'none'}) are none of: messages; conversations; conversation; "
        "prompt and response; input_ids and loss_mask",
        remedy="Name your own keys with --keys prompt=KEY,answer=KEY.",
    )


def _by_own_keys(raw: dict[str, Any], reading: Reading) -> Conversation:
    """Return `raw` with the person's own keys replaced by the names that this module knows."""
    missing = [
        key
        for what, key in reading.keys
        if what not in ("system", "reasoning", "tools", *(("answer",) if reading.prompts else ()))
        and raw.get(key) is None
    ]
    if missing:
        raise RecordError(f"it has no key {missing[0]!r}, which --keys names")
    own = {what: raw[key] for what, key in reading.keys if raw.get(key) is not None}
    if "messages" in own:
        return _conversation(own, json_if_text(own["messages"], "messages"), reading)
    if "answer" not in own:
        return _conversation(own, _as_turns(own["prompt"], "user"), reading)
    return _pair(own, own["prompt"], own["answer"], reading)


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
    if any(not -(1 << 31) <= token < 1 << 31 for token in ids):
        raise RecordError("its input_ids have a number that cannot be a token id")
    if not all(isinstance(value, int | float) and value in (0, 1) for value in mask):
        raise RecordError("its loss_mask has values other than 0 and 1")
    return Tokens(ids, [int(value) for value in mask])


def _pair(raw: dict[str, Any], asked: Any, answer: Any, reading: Reading, extra: Any = None) -> Conversation:
    """Return the messages of a prompt and its answer. Each is a text, a message, or (as in TRL) a list of messages."""
    if isinstance(asked, str) and isinstance(extra, str) and extra:
        asked = f"{asked}\n\n{extra}"
    before, after = _as_turns(asked, "user"), _as_turns(answer, "assistant")
    thought = next((raw[key] for key in REASONING_KEYS if _is_thought(raw.get(key))), None)
    if thought is not None and isinstance(answer, str):
        after = [{**after[0], "reasoning_content": thought}]
    return _conversation(raw, [*before, *after], reading)


def _is_thought(value: Any) -> bool:
    """Return whether a record's `reasoning` is a text. In Nemotron's datasets it is "on" or "off" instead."""
    return isinstance(value, str) and value.strip().lower() not in ("", "on", "off", "yes", "no", "true", "false")


def _as_turns(value: Any, role: str) -> list[Any]:
    if isinstance(value, list):
        return value
    return [value if isinstance(value, dict) else {"role": role, "content": value}]


def _chosen(raw: dict[str, Any], reading: Reading) -> Conversation:
    """Return the conversation with the chosen answer, which is a whole conversation or follows `prompt`."""
    if not reading.chosen:
        raise RecordError(
            "it is a preference pair (chosen, rejected)", remedy="Add --chosen to read only the chosen answers."
        )
    chosen, prompt = json_if_list(raw["chosen"]), raw.get("prompt")
    whole = isinstance(chosen, list) and chosen and _speaks(chosen[0], "user", "human", "system")
    if whole or prompt is None:
        if not whole:
            raise RecordError("its chosen answer has no question: it is not a list of messages, and there is no prompt")
        return _conversation(raw, chosen, reading)
    return _pair(raw, prompt, chosen, reading)


def json_if_list(value: Any) -> Any:
    """Return the messages in a JSON text; any other text unchanged."""
    return json_if_text(value, "chosen") if isinstance(value, str) and value.lstrip()[:2] == "[{" else value


def _speaks(turn: Any, *roles: str) -> bool:
    speaker = turn.get("role", turn.get("from")) if isinstance(turn, dict) else None
    return isinstance(speaker, str) and speaker.strip().lower() in roles


def _conversation(raw: dict[str, Any], turns: Any, reading: Reading) -> Conversation:
    tools = json_if_text(raw.get("tools") or None, "tools") or None
    if not isinstance(turns, list) or not turns:
        raise RecordError("it has no messages")
    if tools is not None and not isinstance(tools, list):
        raise RecordError("its tools are not a list")
    system = next((raw[key] for key in _SYSTEM_KEYS if raw.get(key)), None)
    if system is not None and not _speaks(turns[0], "system", "developer"):
        turns = [{"role": "system", "content": system}, *turns]
    read = [message_of(turn, number, reading.ignored) for number, turn in enumerate(turns)]
    messages = [message for message, _ in read]
    if not reading.prompts and not any(message["role"] == "assistant" for message in messages):
        raise RecordError("it has no assistant turn, so its loss mask would be all 0")
    muted = frozenset(number for number, (_, weight) in enumerate(read) if weight is False)
    return Conversation(messages, tools, muted)
