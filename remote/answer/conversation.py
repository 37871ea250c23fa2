"""One conversation, turn by turn on one server: each prompt has the model's own earlier answers.

Runs on the host inside the dispatcher's event loop. If an attempt fails, the conversation keeps its answers, and the
next attempt repeats only the turn that failed.
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

OTHER_CALL = "the model called a tool, and the data has no result for this call"
NO_CALL = "the data continues with the result of a call that the model did not make"
REFUSED = "the chat template refuses the model's answer"
CONTEXT_FULL = "its next prompt leaves no room for an answer"


@dataclass(frozen=True)
class Sampled:
    """One answer of the server."""

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
"""Asks the server for the answer of turn `number`."""


@dataclass
class Conversation:
    """A record that is being answered."""

    speaker: Speaker
    script: Script | None
    opening: Ids
    longest_prompt: int
    turns: list[Turn] = field(default_factory=list)
    ended: str = ""
    """The reason why the conversation ended before its last turn; "" if it did not."""

    async def hold(self, ask: Ask) -> None:
        """Ask every turn that has no answer yet. If `ask` raises an error, earlier answers are kept."""
        while (prompt := self._next()) is not None:
            self.turns.append(Turn(prompt, await ask(len(self.turns), prompt)))

    def rows(self) -> list[tuple[Ids, NDArray[np.uint8]]]:
        """Return ids and mask of each training record. A turn that continues the turn before is in the same record."""
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
        """Return the prompt of the next turn; None if the conversation is over."""
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
        """Return all messages up to the next question, with the model's own answers."""
        said = list(script.opening())
        for number, turn in enumerate(self.turns):
            said.append(message_of(self.speaker.text_of(turn.sampled.ids)))
            said += script.between(number)
        return said

    def _broken_call(self, script: Script, number: int) -> str:
        """Return why the data cannot continue after answer `number`; "" if it can."""
        text = self.speaker.text_of(self.turns[number].sampled.ids)
        wanted = script.said(number)
        if calls(wanted):
            return "" if makes(text, wanted) else OTHER_CALL if may_call(text) else NO_CALL
        return OTHER_CALL if script.tools and may_call(text) else ""
