"""The model's chat template: a conversation to text, and the facts about the template that masks need.

Called in the worker processes of `prepare`; pure apart from loading transformers.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
from functools import cached_property
from typing import Any

import xxhash

from remote.data.records import Conversation, Message
from remote.data.tokenizer import ModelTokenizer, Spans
from remote.shared import foreign
from remote.shared.errors import RecordError, UsageError

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_NOW = "strftime_now"
"""The function that transformers offers to templates; a variable of the same name takes its place."""
_PROBE = "\ue000"
"""A private-use character: no template tests for it and no text of a person holds it."""


def asks_for_the_date(tokenizer: ModelTokenizer) -> bool:
    """Whether the template writes today's date, so that the same records would be others tomorrow (Llama 3.1)."""
    return _NOW in str(tokenizer.hf.chat_template)


class ChatTemplate:
    """A tokenizer's chat template with its options fixed."""

    def __init__(self, tokenizer: ModelTokenizer, options: dict[str, Any] | None = None, date: str = "") -> None:
        if not tokenizer.hf.chat_template:
            raise UsageError(
                f"The tokenizer at {tokenizer.path} has no chat template.",
                remedy="Give the folder of the chat model, or records with input_ids and loss_mask.",
            )
        self._tokenizer = tokenizer
        self._hf = tokenizer.hf
        self._options: dict[str, Any] = dict(options or {})
        if date:
            self._options[_NOW] = datetime.date.fromisoformat(date).strftime

    @property
    def text(self) -> str:
        """The template itself (of several named ones, the default)."""
        template: str = self._hf.get_chat_template(None, None)
        return template

    @property
    def digest(self) -> str:
        """xxh3-128 of the template's text."""
        return xxhash.xxh3_128_hexdigest(self.text.encode())

    def render(self, messages: list[Message], tools: Any = None, *, prompt: bool = False) -> str:
        """Return the text; with `prompt`, up to where the model would begin to answer.

        Goes through the tokenizer's own `apply_chat_template`, which some models override (Kimi rewrites tools).
        """
        try:
            text: str = self._hf.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=prompt, **self._options
            )
        except Exception as error:
            reason = str(error).strip().splitlines()
            raise RecordError(
                f"the chat template refuses it: {reason[0] if reason else type(error).__name__}"
            ) from error
        return text

    def generation_spans(self, conversation: Conversation, text: str) -> Spans | None:
        """Return what `{% generation %}` blocks hold of `text`, or None where the template does not say."""
        from transformers.utils.chat_template_utils import render_jinja_template

        template = self._hf.get_chat_template(None, conversation.tools)
        if not _GENERATION.search(template):
            return None
        options = {**self._hf.special_tokens_map, **self._options}
        rendered, spans = render_jinja_template(
            conversations=[conversation.messages],
            tools=conversation.tools,
            chat_template=template,
            return_assistant_tokens_mask=True,
            **options,
        )
        return [(start, stop) for start, stop in spans[0] if stop > start] if rendered[0] == text else None

    @cached_property
    def takes_argument_objects(self) -> bool:
        """Whether tool-call arguments go in as objects (most templates) or as JSON text (those that join them)."""
        call: dict[str, Any] = {"name": "probe", "arguments": {_PROBE: 1}}
        messages: list[Message] = [
            {"role": "user", "content": "probe"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call00000", "type": "function", "function": call}],
            },
        ]
        try:
            return f'"{_PROBE}"' in self.render(messages)
        except RecordError:
            return False

    @cached_property
    def ending(self) -> str:
        """The special token that closes an assistant turn (`<|im_end|>`), or "" where turns have none.

        Read off the template: the first special token after the last answer, with nothing but white space before it.
        """
        messages = [{"role": "user", "content": "probe"}, {"role": "assistant", "content": _PROBE}]
        try:
            return self.special_at(self.render(messages).rpartition(_PROBE)[2])
        except RecordError:
            return ""

    @cached_property
    def _specials(self) -> list[str]:
        added = {str(token) for token in self._hf.added_tokens_decoder.values() if token.special}
        return sorted(added | set(self._hf.all_special_tokens), key=len, reverse=True)

    def special_at(self, text: str) -> str:
        """The special token that `text` begins with, white space aside; "" where there is none."""
        bare = text.lstrip()
        return next((token for token in self._specials if bare.startswith(token)), "")

    def has_special(self, text: str) -> bool:
        """Whether `text` holds a special token, as a turn's header does."""
        return any(token in text for token in self._specials)

    @cached_property
    def ends(self) -> frozenset[str]:
        """Tokens at which generation ends: the tokenizer's and those of `generation_config.json` beside it."""
        return frozenset(self._tokenizer.end_tokens())


def with_arguments_as_the_template_takes_them(template: ChatTemplate, conversation: Conversation) -> Conversation:
    """Tool-call arguments arrive as JSON text (OpenAI) or objects; templates break on the wrong one, or quote it."""
    if not any(message.get("tool_calls") for message in conversation.messages):
        return conversation
    convert = _as_object if template.takes_argument_objects else _as_text
    messages = [
        {**message, "tool_calls": [_with_arguments(call, convert) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in conversation.messages
    ]
    return Conversation(messages, conversation.tools)


def _with_arguments(call: dict[str, Any], convert: Any) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": convert(function.get("arguments", {}))}}


def _as_object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return foreign.loads(arguments or "{}")
    except ValueError as error:
        raise RecordError("the arguments of a tool call are a text that is not JSON") from error


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def quiet_transformers() -> None:
    """Its advice (a text longer than the model's maximum, …) would come once a worker; lengths are checked here."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
