"""The model's own tokenizer and chat template on this host: decodes answers, and makes the prompts of later turns.

Runs on the host. Sampled ids are not tokenized again: if the template keeps the earlier text unchanged, a later prompt
is the ids so far plus the ids of the text that the template adds.
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
    """The prompt of an answer."""

    ids: Ids
    text: str
    goes_on: bool
    """Whether the ids begin with the last prompt and all ids that were sampled after it."""


class Speaker:
    """The tokenizer of one model. Used in the event loop, except `load` and the pure `decode` and `changed`."""

    def __init__(self, tokenizer: ModelTokenizer, settings: Answering) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, dict(settings.template_options), settings.date)

    @classmethod
    def load(cls, model: Path, identity: RunIdentity, carried: Path) -> Speaker:
        """Load the model's tokenizer and template; raises HostError if other ones rendered the prompts."""
        assert identity.answers is not None
        tokenizer, _ = load_carried(TokenizerSpec(str(model)), carried, proved=False)
        for what, mine, wanted in (
            ("tokenizer", tokenizer.digest, identity.tokenizer),
            ("chat template", template_digest(tokenizer), identity.answers.template),
        ):
            if mine != wanted:
                raise HostError(
                    f"The {what} in {model} has the digest {mine}, but the prompts were rendered with {wanted}.",
                    remedy="Render the prompts with this model's own folder: inv answer --tokenizer.",
                )
        return cls(tokenizer, identity.answers)

    @cached_property
    def _ends(self) -> set[int]:
        """Return the ids at which generation ends."""
        found = (self.encode(text) for text in (*self._template.ends, *self._template.endings))
        return {int(ids[0]) for ids in found if len(ids) == 1}

    def decode(self, ids: Ids) -> str:
        """Return the text of ids, including special tokens."""
        return self._tokenizer.decode(ids.tolist())

    def encode(self, text: str) -> Ids:
        """Return the ids of a text. Special tokens in it become their ids."""
        nowhere: list[Spans] = [[]]
        return self._tokenizer.encode([text], nowhere)[0][0].astype(np.int32, copy=False)

    def text_of(self, answer: Ids) -> str:
        """Return the text of an answer, without the token that ended it."""
        return self.decode(answer[:-1] if self._ended(answer) else answer)

    def changed(self, ids: Ids) -> bool:
        """Return whether tokenizing the text of these ids gives other ids."""
        return not np.array_equal(self.encode(self.decode(ids)), ids)

    def first(self, script: Script | None, ids: Ids) -> Prompt:
        """Return the first prompt, which was rendered when the run was planned."""
        if script is None:
            return Prompt(ids, "", goes_on=False)
        opening, _ = fit(self._template, Conversation(script.opening(), script.tools))
        return Prompt(ids, self._template.render(opening.messages, opening.tools, prompt=True), goes_on=False)

    def next(self, script: Script, said: list[Message], last: Prompt, answer: Ids) -> Prompt:
        """Return the prompt after `answer`; `said` are all messages up to the next question.

        Raises RecordError if the template refuses the model's answer.
        """
        text = self._rendered(script, said)
        before = last.text + self.text_of(answer)
        if text.startswith(before):
            return self._going_on(text, text[len(before) :], last, answer)
        text = self._rendered(script, [_with_thought_apart(message) for message in said])
        return Prompt(self.encode(text), text, goes_on=False)

    def _going_on(self, text: str, rest: str, last: Prompt, answer: Ids) -> Prompt:
        """Return the next prompt for a template that kept all earlier text unchanged.

        If the template closes the turn with another token than the model, the template's token replaces the model's
        token, and the answer before is a training record of its own.
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
    """Return an assistant's turn with its reasoning under the key that templates read, so that they can drop it."""
    thought, closed, answer = str(message["content"]).partition(_THOUGHT)
    if message["role"] != "assistant" or not closed or "reasoning_content" in message:
        return message
    return {
        **message,
        "reasoning_content": thought.replace("<think>", "", 1).strip("\n"),
        "content": answer.lstrip("\n"),
    }
