"""The model's chat template: renders conversations, and finds the facts about the template that masks depend on.

Called in the worker processes of `prepare`. Each fact is found by a probe: a small conversation with a private-use
character in one place is rendered, and the character is searched in the text.
"""

from __future__ import annotations

import datetime
import json
import re
from functools import cached_property
from typing import Any

import xxhash

from remote.data import rendering
from remote.data.encoding import Spans
from remote.data.messages import REASONING_KEYS, Message
from remote.data.tokenizer import ModelTokenizer
from remote.shared.errors import RecordError, UsageError

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_NOW = "strftime_now"
"""The function that transformers offers to templates. A variable of the same name replaces it."""
PROBE = "\ue000"
"""A private-use character, for which no template tests and which no person writes."""
IN_CONTENT = "content"
"""The place of reasoning that a template takes between `<think>` and `</think>` at the beginning of the content."""


def asks_for_the_date(tokenizer: ModelTokenizer) -> bool:
    """Return whether the template writes today's date (Llama 3.1), which changes a record's tokens every day."""
    return _NOW in str(tokenizer.words.chat_template)


def template_digest(tokenizer: ModelTokenizer) -> str:
    """Return the xxh3-128 of the template's text (of the default, if there are several); "" if there is no template."""
    words = tokenizer.words
    return xxhash.xxh3_128_hexdigest(words.template_for(None).encode()) if words.chat_template else ""


class ChatTemplate:
    """A tokenizer's chat template with its options fixed."""

    def __init__(self, tokenizer: ModelTokenizer, options: dict[str, Any] | None = None, date: str = "") -> None:
        if not tokenizer.words.chat_template:
            raise UsageError(
                f"The tokenizer at {tokenizer.path} has no chat template.",
                remedy="Give the folder of the chat model, or records with input_ids and loss_mask.",
            )
        self._tokenizer = tokenizer
        self._words = tokenizer.words
        self._options: dict[str, Any] = dict(options or {})
        if date:
            self._options[_NOW] = datetime.date.fromisoformat(date).strftime

    def render(self, messages: list[Message], tools: Any = None, *, prompt: bool = False) -> str:
        """Return the text; with `prompt`, up to the place where the model would begin its answer. Raise RecordError."""
        return self._bounded(messages, tools, prompt)[0]

    def render_marked(self, messages: list[Message], tools: Any = None) -> tuple[str, Spans | None]:
        """Return the text and the spans of its `{% generation %}` blocks, or None if it has none."""
        text, spans = self._bounded(messages, tools, False)
        if not _GENERATION.search(self._words.template_for(tools)):
            return text, None
        return text, [(start, stop) for start, stop in spans if stop > start]

    def _bounded(self, messages: list[Message], tools: Any, prompt: bool) -> tuple[str, Spans]:
        try:
            with rendering.bounded():
                return self._rendered(messages, tools, prompt)
        except (RecordError, UsageError):
            raise
        except Exception as error:
            reason = str(error).strip().splitlines()
            raise RecordError(
                f"the chat template refuses it: {reason[0] if reason else type(error).__name__}"
            ) from error

    def _rendered(self, messages: list[Message], tools: Any, prompt: bool) -> tuple[str, Spans]:
        if self._tokenizer.renders_itself:
            text: str = self._tokenizer.hf.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=prompt, **self._options
            )
            return text, []
        variables = {**self._words.variables, **self._options}
        return rendering.render(
            rendering.compiled(self._words.template_for(tools)),
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=prompt,
            **variables,
        )

    @cached_property
    def takes_argument_objects(self) -> bool:
        """Whether tool-call arguments are given as objects (most templates), and not as JSON text."""
        return f'"{PROBE}"' in self._probed({"tool_calls": [_call({PROBE: 1})]}) or self._shows_argument_keys

    @cached_property
    def _shows_argument_keys(self) -> bool:
        """Return whether the keys of arguments are in the text. Without quotes, because GLM and MiniMax write none."""
        return PROBE in self._probed({"tool_calls": [_call({PROBE: 1})]}) and PROBE not in self._probed(
            {"tool_calls": [_call(f'{{"{PROBE}": 1}}')]}
        )

    @cached_property
    def shows_call_names(self) -> bool:
        """Whether the names of called functions are in the text. Kimi writes them only inside the ids."""
        return PROBE in self._probed({"tool_calls": [_call(self._arguments("x"), name=PROBE)]})

    @cached_property
    def shows_call_ids(self) -> bool:
        """Return whether the ids of tool calls are in the text, and are therefore generated (Mistral, Kimi)."""
        # Nine characters, because Mistral's templates refuse ids of another length.
        return any(
            PROBE in self._probed({"tool_calls": [_call(self._arguments("x"), id=PROBE * length)]}, PROBE * length)
            for length in (9, 1)
        )

    @cached_property
    def shows_calls(self) -> bool:
        """Whether the assistant's tool calls are in the text: their arguments, and their names or ids."""
        shown = PROBE in self._probed({"tool_calls": [_call(self._arguments(PROBE))]})
        return shown and (self.shows_call_names or self.shows_call_ids)

    def _arguments(self, key: str) -> Any:
        return {key: 1} if self.takes_argument_objects else json.dumps({key: 1}, ensure_ascii=False)

    @cached_property
    def reasoning_place(self) -> str:
        """The key under which the template reads a turn's reasoning, IN_CONTENT, or "" if it reads none."""
        for key in REASONING_KEYS:
            if self.reads("assistant", key):
                return key
        return IN_CONTENT if self._takes_reasoning_in_content else ""

    @cached_property
    def _takes_reasoning_in_content(self) -> bool:
        """Whether the template reads `<think>` at the beginning of a content (Qwen3) and writes none itself."""
        text = self._conversation("assistant", {"content": f"<think>\n{PROBE}\n</think>\n\nprobe"}, call=False)
        return "</think>" in self._words.template_for(None) and PROBE in text and text.count("<think>") == 1

    def reads(self, role: str, key: str, value: Any = PROBE) -> bool:
        """Return whether a message's `key` changes the rendered text; the value, if it is a text, must be in it."""
        if not isinstance(value, str):
            return any(
                self._conversation(role, {key: value}, call) != self._conversation(role, {}, call)
                for call in (False, True)
            )
        # Nine characters, because Mistral's templates refuse ids of another length.
        return any(PROBE in self._conversation(role, {key: PROBE * 9}, call) for call in (False, True))

    def _conversation(self, role: str, more: Message, call: bool) -> str:
        """Return the text of a conversation whose last message of `role` has `more`; `call` adds a tool call."""
        tool_call = {"tool_calls": [_call(self._arguments("x"))]}
        user: Message = {"role": "user", "content": "probe"}
        answer: Message = {"role": "assistant", "content": "probe"}
        called: Message = {"role": "assistant", "content": "", **tool_call}
        result: Message = {"role": "tool", "content": "probe", "tool_call_id": "call00000", "name": "probe"}
        messages = {
            "assistant": [user, {**called, **more}] if call else [user, {**answer, **more}],
            "tool": [user, called, {**result, **more}],
            "user": [{**user, **more}, answer],
        }.get(role, [{"role": role, "content": "probe", **more}, user, answer])
        try:
            return self.render(messages)
        except RecordError:
            return ""

    def _probed(self, more: Message, call_id: str = "call00000") -> str:
        user = {"role": "user", "content": "probe"}
        asked = [user, {"role": "assistant", "content": "", **more}]
        try:
            return self.render(asked)
        except RecordError:
            pass
        try:  # some templates require the tool's answer
            return self.render([*asked, {"role": "tool", "content": "probe", "tool_call_id": call_id}])
        except RecordError:
            return ""

    @cached_property
    def endings(self) -> frozenset[str]:
        """The special tokens that close an assistant's turn (`<|im_end|>`): its last one, an earlier one, a call.

        Found by rendering: the first special token after the answer, if nothing or another special token follows it,
        and the last special token after a call. In GLM, which closes no turn, the next question follows the first
        special token.
        """
        user: Message = {"role": "user", "content": "probe"}
        answer: Message = {"role": "assistant", "content": PROBE}
        call: Message = {"role": "assistant", "content": "", "tool_calls": [_call(self._arguments(PROBE))]}
        found = {self._closing(messages) for messages in ([user, answer], [user, answer, user])}
        after_call = self._after_probe([user, call]).rstrip()
        found.add(next((token for token in self._words.specials if after_call.endswith(token)), ""))
        return frozenset(found - {""})

    def _closing(self, messages: list[Message]) -> str:
        rest = self._after_probe(messages)
        places = [(rest.find(token), -len(token), token) for token in self._words.specials if token in rest]
        if not places:
            return ""
        token = min(places)[2]
        behind = rest.partition(token)[2].lstrip()
        return token if not behind or self.special_at(behind) else ""

    def _after_probe(self, messages: list[Message]) -> str:
        try:
            return self.render(messages).rpartition(PROBE)[2]
        except RecordError:
            return ""

    @cached_property
    def answers_follow_questions(self) -> bool:
        """Whether only white space is between a question and its answer (Mistral)."""
        try:
            asked = self.render([{"role": "user", "content": "probe"}])
            text = self.render([{"role": "user", "content": "probe"}, {"role": "assistant", "content": PROBE}])
        except RecordError:
            return False
        return text.startswith(asked) and not text[len(asked) :].partition(PROBE)[0].strip()

    def special_at(self, text: str) -> str:
        """Return the special token at the beginning of `text`, after white space; "" if there is none."""
        bare = text.lstrip()
        return next((token for token in self._words.specials if bare.startswith(token)), "")

    def has_special(self, text: str) -> bool:
        """Return whether `text` holds a special token, as a turn's header does."""
        return any(token in text for token in self._words.specials)

    def last_boundary(self, text: str, start: int, stop: int) -> int:
        """Return the last place in `text[start:stop]` where white space or a special token ends, or `stop`."""
        ends = [
            text.rfind(token, start, stop) + len(token) for token in self._words.specials if token in text[start:stop]
        ]
        spaces = [place + 1 for place in range(start, stop) if text[place].isspace()]
        return max([*ends, *spaces], default=stop)

    @cached_property
    def ends(self) -> frozenset[str]:
        """Tokens at which generation ends."""
        return frozenset(self._words.ends)


def _call(arguments: Any, name: str = "probe", id: str = "call00000") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
