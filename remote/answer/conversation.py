"""One conversation, turn by turn: each answer on top of the answers before it, on one server.

Runs on the host inside the dispatcher's event loop. What was answered stays with the conversation if a try fails, so
that the next one asks the turn again that failed, and no other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from remote.answer.said import calls, makes, may_call, message_of
from remote.answer.speaker import Ids, Prompt, Speaker
from remote.data.asking import Script
from remote.data.messages import Message
from remote.shared.errors import RecordError

OTHER_CALL = "the model called a tool that the data has no result for"
NO_CALL = "the data goes on with the result of a tool that the model did not call"
REFUSED = "the chat template refuses what the model said"
CONTEXT_FULL = "its next prompt leaves no room for an answer"


@dataclass(frozen=True)
class Sampled:
    """One answer as the server gave it."""

    ids: Ids
    finish: str
    matched: int | str | None
    cached: int
    logprobs: NDArray[np.float32] | None
    seed: int


@dataclass(frozen=True)
class Turn:
    """A prompt and its answer."""

    prompt: Prompt
    sampled: Sampled


Ask = Callable[[int, Prompt], Awaitable[Sampled]]
"""Has turn `number` answered."""


@dataclass
class Conversation:
    """A record that is being answered."""

    speaker: Speaker
    script: Script | None
    opening: Ids
    longest_prompt: int
    turns: list[Turn] = field(default_factory=list)
    ended: str = ""
    """Why it ended before its last turn."""

    async def hold(self, ask: Ask) -> None:
        """Ask every turn that is not answered yet; what `ask` raises leaves the answers before it in place."""
        while (prompt := self._next()) is not None:
            self.turns.append(Turn(prompt, await ask(len(self.turns), prompt)))

    def rows(self) -> list[tuple[Ids, NDArray[np.uint8]]]:
        """Ids and mask of each training record: turns that go on from the one before share one record with it."""
        made: list[tuple[Ids, NDArray[np.uint8]]] = []
        for turn in self.turns:
            prompt, answer = turn.prompt.ids, turn.sampled.ids
            mask = np.zeros(len(prompt) + len(answer), np.uint8)
            mask[len(prompt) :] = 1
            if turn.prompt.goes_on and made:
                before = made.pop()[1]
                mask[: len(before)] = before
            made.append((np.concatenate([prompt, answer]), mask))
        return made

    def _next(self) -> Prompt | None:
        """The prompt of the next turn; None if the conversation is over."""
        number = len(self.turns)
        if not number:
            return self.speaker.first(self.script, self.opening)
        if self.ended or self.script is None or number >= len(self.script.asks):
            return None
        last = self.turns[-1]
        self.ended = self._broken_call(self.script, number - 1)
        if self.ended:
            return None
        try:
            prompt = self.speaker.next(self.script, self._said(self.script), last.prompt, last.sampled.ids)
        except RecordError:
            self.ended = REFUSED
            return None
        if len(prompt.ids) > self.longest_prompt:
            self.ended = CONTEXT_FULL
            return None
        return prompt

    def _said(self, script: Script) -> list[Message]:
        """All messages up to the next question, with the model's own answers."""
        said = list(script.opening())
        for number, turn in enumerate(self.turns):
            said.append(message_of(self.speaker.text_of(turn.sampled.ids)))
            said += script.between(number)
        return said

    def _broken_call(self, script: Script, number: int) -> str:
        """Why the data cannot go on after answer `number`; "" if it can."""
        text = self.speaker.text_of(self.turns[number].sampled.ids)
        wanted = script.said(number)
        if calls(wanted):
            return "" if makes(text, wanted) else OTHER_CALL if may_call(text) else NO_CALL
        return OTHER_CALL if script.tools and may_call(text) else ""
