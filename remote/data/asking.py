"""A conversation whose turns the model answers again: which turns, and which messages come before each turn. Pure.

Used by the verb `prompts`, which renders the messages before the first answer, and by `inv answer` on a host for all
later turns.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from remote.data.messages import Message
from remote.data.records import Conversation
from remote.shared.errors import RecordError
from remote.shared.messages.run import Turns

_CHARACTERS_A_TOKEN = 4
"""Characters of a token, an estimate for planning."""


@dataclass(frozen=True)
class Script:
    """A conversation from the data. The model writes the messages at the places `asks`."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    asks: list[int]
    """Ascending places in `messages`. The last place may be the number of messages."""

    def opening(self) -> list[Message]:
        """Return the messages before the first answer."""
        return self.messages[: self.asks[0]]

    def between(self, number: int) -> list[Message]:
        """Return the messages between answer `number` and the next answer."""
        return self.messages[self.asks[number] + 1 : self.asks[number + 1]]

    def said(self, number: int) -> Message | None:
        """Return the data's own message in the place of answer `number`; None if the data has no message there."""
        place = self.asks[number]
        return self.messages[place] if place < len(self.messages) else None

    def expected(self, unknown: int) -> int:
        """Return an estimate of the tokens after the opening."""
        known = [self.said(number) for number in range(len(self.asks))]
        answers = sum(unknown if said is None else _tokens(said) for said in known)
        gaps = range(len(self.asks) - 1)
        return answers + sum(_tokens(message) for number in gaps for message in self.between(number))

    def to_json(self) -> str:
        """Return the script as JSON; "" if it has a single answer and no tools, and so no later turn."""
        if len(self.asks) == 1 and not self.tools:
            return ""
        return json.dumps(
            {"messages": self.messages, "tools": self.tools, "asks": self.asks}, ensure_ascii=False, default=str
        )

    @classmethod
    def of_json(cls, text: str) -> Script | None:
        """Return the script of `to_json`'s text; None for ""."""
        if not text:
            return None
        values = json.loads(text)
        return cls(values["messages"], values["tools"], values["asks"])


def script_of(conversation: Conversation, turns: Turns) -> Script:
    """Return the conversation and the turns that the model answers; raise RecordError if there are none."""
    messages = conversation.messages
    asks = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if messages[-1]["role"] in ("user", "tool"):
        asks.append(len(messages))
    if not asks:
        raise RecordError("nothing in it asks for an answer: its last message is not a user's")
    if turns == "last":
        asks = asks[-1:]
    if not any(message["role"] == "user" for message in messages[: asks[0]]):
        raise RecordError("its first message is the assistant's, so there is no question to answer")
    empty = next((place for place in range(asks[-1]) if _is_empty(messages[place])), None)
    if empty is not None:
        raise RecordError(f"message {empty} ({messages[empty]['role']}) is empty, and it is a prompt")
    return Script(messages, conversation.tools, asks)


def _is_empty(message: Message) -> bool:
    return message["role"] == "user" and not message["content"].strip()


def _tokens(message: Message) -> int:
    return 1 + len(str(message.get("content") or message.get("tool_calls") or "")) // _CHARACTERS_A_TOKEN
