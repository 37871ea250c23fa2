"""A conversation as it is answered anew: which turns are asked, and what is read before each. Pure.

Used by the verb `prompts`, which renders what is asked first, and on a host, which asks the rest.
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
"""Of text that is not tokenized, for planning."""


@dataclass(frozen=True)
class Script:
    """Messages from the data; the ones at `asks` are the model's to say."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    asks: list[int]
    """Rising places in `messages`; the last one may be their end."""

    def opening(self) -> list[Message]:
        """What is read before the first answer."""
        return self.messages[: self.asks[0]]

    def between(self, number: int) -> list[Message]:
        """What stands between answer `number` and the next one."""
        return self.messages[self.asks[number] + 1 : self.asks[number + 1]]

    def said(self, number: int) -> Message | None:
        """What the data says where the model gives its answer `number`."""
        place = self.asks[number]
        return self.messages[place] if place < len(self.messages) else None

    def expected(self, unknown: int) -> int:
        """Tokens after the opening: answers as long as the data's own, else `unknown` each, and what is between."""
        known = [self.said(number) for number in range(len(self.asks))]
        answers = sum(unknown if said is None else _tokens(said) for said in known)
        gaps = range(len(self.asks) - 1)
        return answers + sum(_tokens(message) for number in gaps for message in self.between(number))

    def to_json(self) -> str:
        """The script as it travels; "" if its first answer is its only one and calls no tools."""
        if len(self.asks) == 1 and not self.tools:
            return ""
        return json.dumps(
            {"messages": self.messages, "tools": self.tools, "asks": self.asks}, ensure_ascii=False, default=str
        )

    @classmethod
    def of_json(cls, text: str) -> Script | None:
        """Read back what `to_json` wrote; None for ""."""
        if not text:
            return None
        values = json.loads(text)
        return cls(values["messages"], values["tools"], values["asks"])


def script_of(conversation: Conversation, turns: Turns) -> Script:
    """Return which turns are asked; raise RecordError if there is nothing to answer."""
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
