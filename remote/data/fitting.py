"""Puts a conversation into the form that its chat template reads, so that no text under the loss is silently dropped.

Called in the worker processes of `prepare`; pure. Datasets have many names for the same content, and each template
reads one of them: reasoning moves to the key that the template reads, and tool-call arguments become objects or text. A
record cannot be used if the template ignores a key with content that the assistant generated; the error names the key.
Other keys that the template ignores are only counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from remote.data.messages import Message
from remote.data.records import Conversation
from remote.data.template import IN_CONTENT, ChatTemplate
from remote.data.values import parse
from remote.shared.errors import RecordError

Unread = Counter[str]
"""Message keys that the template does not read, as `ROLE.KEY`, with the number of messages that have them."""

_PLAIN = {"role", "content"}
_ABOUT_THE_MESSAGE = frozenset(
    {"id", "message_id", "parent_id", "conversation_id", "user_id", "channel_id", "index", "turn", "turn_identifier"}
    | {"model", "model_name", "finish_reason", "stop_reason", "end_turn", "recipient", "author", "name", "type"}
    | {"timestamp", "created", "created_at", "date", "time", "language", "lang", "country", "state", "hashed_ip", "ip"}
    | {
        "header",
        "tokens",
        "token_count",
        "num_tokens",
        "usage",
        "logprobs",
        "score",
        "rating",
        "rank",
        "label",
        "labels",
    }
    | {"source", "annotator", "status", "metadata", "toxic", "redacted", "openai_moderation", "detoxify_moderation"}
)
"""Keys about a message, whose values the assistant did not write."""
_REFUSE = "Correct the record, leave such keys out with --ignore KEY, or drop and count such records with --bad drop."


def fit(template: ChatTemplate, conversation: Conversation) -> tuple[Conversation, Unread]:
    """Return the conversation in the template's form, and the keys that the template ignores; raises RecordError."""
    unread: Unread = Counter()
    messages = [
        message if message.keys() <= _PLAIN else _fitted(template, message, number, unread)
        for number, message in enumerate(conversation.messages)
    ]
    return replace(conversation, messages=messages), unread


def _fitted(template: ChatTemplate, message: Message, number: int, unread: Unread) -> Message:
    role = message["role"]
    fitted: Message = {}
    for key, value in message.items():
        if role == "assistant" and key == "tool_calls":
            fitted[key] = _calls(template, value, number)
            continue
        if key in ("role", "content") or (role == "assistant" and key == "reasoning_content"):
            fitted[key] = value
            continue
        if _is_empty(value):
            continue
        fitted[key] = value
        if _reads(template, role, key, value):
            continue
        if role == "assistant" and key not in _ABOUT_THE_MESSAGE and _has_text(value):
            raise RecordError(
                f"message {number} (assistant) has {key!r}, which the chat template does not read", remedy=_REFUSE
            )
        unread[f"{role}.{key}"] += 1
    return _with_reasoning(template, fitted, number) if "reasoning_content" in fitted else fitted


@lru_cache(maxsize=4096)
def _reads_kind(template: ChatTemplate, role: str, key: str, kind: str, text: str) -> bool:
    return template.reads(role, key) if kind == "str" else template.reads(role, key, json.loads(text))


def _reads(template: ChatTemplate, role: str, key: str, value: Any) -> bool:
    """Return whether the template reads `key`. Cached for texts, and for every other value that is short."""
    if isinstance(value, str):
        return _reads_kind(template, role, key, "str", "")
    text = json.dumps(value, default=str)
    if len(text) <= 64:
        return _reads_kind(template, role, key, "other", text)
    return template.reads(role, key, value)


def _is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def _has_text(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, dict):
        return any(map(_has_text, value.values()))
    return isinstance(value, list) and any(map(_has_text, value))


def _with_reasoning(template: ChatTemplate, message: Message, number: int) -> Message:
    place = template.reasoning_place
    if not place:
        raise RecordError(
            f"message {number} (assistant) has reasoning, but the chat template reads it from no key",
            remedy=_REFUSE,
        )
    reasoning = message.pop("reasoning_content")
    if place != IN_CONTENT:
        return {**message, place: reasoning}
    thought = reasoning.strip("\n")
    return {**message, "content": f"<think>\n{thought}\n</think>\n\n{message['content']}"}


def _calls(template: ChatTemplate, calls: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    if not template.shows_calls:
        raise RecordError(
            f"message {number} (assistant) has tool calls, which the chat template does not read", remedy=_REFUSE
        )
    if template.shows_call_ids and not all(call.get("id") for call in calls):
        raise RecordError(
            f"message {number} (assistant) has a tool call without an id, but the chat template writes ids",
            remedy="Give each call the id that the model would have written.",
        )
    for call in calls if not template.shows_call_names else ():
        if call["function"]["name"] not in str(call.get("id")):
            raise RecordError(
                f"the chat template writes the id of a tool call instead of its name, and the id {call.get('id')!r} in "
                f"message {number} (assistant) does not name {call['function']['name']!r}",
                remedy="Write the ids as the model does, as in functions.NAME:0.",
            )
    convert = _as_object if template.takes_argument_objects else _as_text
    return [_with_arguments(call, convert) for call in calls]


def _with_arguments(call: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": convert(function.get("arguments", {}))}}


def _as_object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return parse(arguments or "{}")
    except ValueError as error:
        raise RecordError(f"the arguments of a tool call, a text, cannot be read: {error}") from error


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def check_shown(conversation: Conversation, fitted: Conversation, text: str, unread: Unread) -> None:
    """Raise RecordError if the text lacks a part of the assistant's messages; count reasoning that it lacks on purpose.

    Templates of thinking models leave out the reasoning of turns before the last question, as they did when the model
    answered. Such reasoning is only counted.
    """
    last_question = max((at for at, one in enumerate(fitted.messages) if one["role"] == "user"), default=-1)
    for number, (message, as_read) in enumerate(zip(fitted.messages, conversation.messages, strict=True)):
        if message["role"] != "assistant":
            continue
        answer = message["content"].rpartition("</think>")[2].strip()
        if answer and answer not in text:
            raise RecordError(
                f"the chat template shows nothing of what message {number} (assistant) says", remedy=_REFUSE
            )
        reasoning = as_read.get("reasoning_content", "").strip()
        if reasoning and reasoning not in text:
            if number > last_question:
                raise RecordError(
                    f"the chat template does not show the reasoning of message {number} (assistant)", remedy=_REFUSE
                )
            unread["assistant.reasoning of an earlier turn"] += 1
