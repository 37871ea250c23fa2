"""The model's own tokenizer and chat template on this host: sampled ids to text, and what a later turn reads to ids.

Runs on the host. Ids that were sampled are never made of text again: a later prompt is the ids so far and the ids of
what the template adds, wherever the template leaves the text before as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from remote.data.asking import Script
from remote.data.carried import load_carried
from remote.data.encoding import Spans
from remote.data.fitting import fit
from remote.data.messages import Message
from remote.data.records import Conversation
from remote.data.template import ChatTemplate, template_digest
from remote.data.tokenizer import ModelTokenizer, TokenizerSpec
from remote.shared.errors import HostError
from remote.shared.messages.run import Answering, RunIdentity

Ids = NDArray[np.int32]
_THOUGHT = "</think>"


@dataclass(frozen=True)
class Prompt:
    """What the model reads before an answer."""

    ids: Ids
    text: str
    goes_on: bool
    """Whether the ids begin with the last prompt and all that was sampled after it."""


class Speaker:
    """One model's; used from the event loop, but for `load` and the pure `decode` and `changed`."""

    def __init__(self, tokenizer: ModelTokenizer, settings: Answering) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, dict(settings.template_options), settings.date)

    @classmethod
    def load(cls, model: Path, identity: RunIdentity, carried: Path) -> Speaker:
        """Load what the prompts were rendered with; raises HostError if the model here has another one."""
        assert identity.answers is not None
        tokenizer, _ = load_carried(TokenizerSpec(str(model)), carried, proved=False)
        for what, mine, wanted in (
            ("tokenizer", tokenizer.digest, identity.tokenizer),
            ("chat template", template_digest(tokenizer), identity.answers.template),
        ):
            if mine != wanted:
                raise HostError(
                    f"The {what} in {model} has the digest {mine}, and the prompts were rendered with {wanted}.",
                    remedy="Render the prompts with this model's own folder: inv answer --tokenizer.",
                )
        return cls(tokenizer, identity.answers)

    @cached_property
    def _ends(self) -> set[int]:
        """Ids at which generation ends."""
        found = (self.encode(text) for text in (*self._template.ends, *self._template.endings))
        return {int(ids[0]) for ids in found if len(ids) == 1}

    def decode(self, ids: Ids) -> str:
        """The text of ids, special tokens shown."""
        return self._tokenizer.decode(ids.tolist())

    def encode(self, text: str) -> Ids:
        """The ids of a text, special tokens read as such."""
        nowhere: list[Spans] = [[]]
        return self._tokenizer.encode([text], nowhere)[0][0].astype(np.int32, copy=False)

    def text_of(self, answer: Ids) -> str:
        """What was said, without the token that ended it."""
        return self.decode(answer[:-1] if self._ended(answer) else answer)

    def changed(self, ids: Ids) -> bool:
        """Whether tokenizing the text of these ids gives other ids."""
        return not np.array_equal(self.encode(self.decode(ids)), ids)

    def first(self, script: Script | None, ids: Ids) -> Prompt:
        """The prompt that was rendered when the run was planned."""
        if script is None:
            return Prompt(ids, "", goes_on=False)
        opening, _ = fit(self._template, Conversation(script.opening(), script.tools))
        return Prompt(ids, self._template.render(opening.messages, opening.tools, prompt=True), goes_on=False)

    def next(self, script: Script, said: list[Message], last: Prompt, answer: Ids) -> Prompt:
        """The prompt after `answer`; `said` are all messages up to the next question.

        Raises RecordError if the template refuses what the model said.
        """
        text = self._rendered(script, said)
        before = last.text + self.text_of(answer)
        if text.startswith(before):
            return self._going_on(text, text[len(before) :], last, answer)
        text = self._rendered(script, [_with_thought_apart(message) for message in said])
        return Prompt(self.encode(text), text, goes_on=False)

    def _going_on(self, text: str, rest: str, last: Prompt, answer: Ids) -> Prompt:
        """The prompt of a template that left everything as it was said.

        Where the template closes the turn with another token than the model did, that token takes its place: the
        answer before it is then a record of its own.
        """
        end = self.decode(answer[-1:]) if self._ended(answer) else ""
        goes_on = rest.startswith(end)
        said = answer if goes_on else answer[:-1]
        added = self.encode(rest.removeprefix(end))
        return Prompt(np.concatenate([last.ids, said, added]), text, goes_on)

    def _rendered(self, script: Script, said: list[Message]) -> str:
        fitted, _ = fit(self._template, Conversation(said, script.tools))
        return self._template.render(fitted.messages, fitted.tools, prompt=True)

    def _ended(self, answer: Ids) -> bool:
        return len(answer) > 0 and int(answer[-1]) in self._ends


def _with_thought_apart(message: Message) -> Message:
    """A turn of the assistant with its thinking where templates look for it, to keep it or to leave it out."""
    thought, closed, answer = str(message["content"]).partition(_THOUGHT)
    if message["role"] != "assistant" or not closed or "reasoning_content" in message:
        return message
    return {
        **message,
        "reasoning_content": thought.replace("<think>", "", 1).strip("\n"),
        "content": answer.lstrip("\n"),
    }
