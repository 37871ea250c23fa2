"""Answers that the model samples itself: their requests, a host's statistics, and the description in an answer's file.

A run of answers is a run like any other, and its identity has the settings. A prompt is one row of a dataset of prompts
(`PromptsRequest`); its record is the answered conversation.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from remote.shared.messages.dataset import Manifest, OwnKey
from remote.shared.messages.envelope import Message
from remote.shared.messages.extract import longest_record
from remote.shared.messages.run import Answering, Mark, RunIdentity, Turns

MARKS: tuple[Mark, ...] = ("length", "empty", "repeating", "refused")
_LEAST_ANSWER = 16


def least_answer(settings: Answering) -> int:
    """Return the number of tokens that a prompt must leave for an answer."""
    return min(_LEAST_ANSWER, settings.max_tokens)


def longest_prompt(context: int, settings: Answering) -> int:
    """Return the number of tokens of the longest prompt that leaves room for an answer."""
    return longest_record(context) - least_answer(settings)


class PromptsRequest(Message):
    """Make a dataset of prompts: each row has the first prompt of a conversation, and the rest of the conversation."""

    inputs: list[str]
    """Inputs as in `PrepareRequest`, and text files (`.txt`) with a prompt on each line."""
    out: str
    tokenizer: str
    turns: Turns = "all"
    samples: int = Field(default=1, ge=1)
    """Number of answers to each prompt; the dataset has as many consecutive rows for it."""
    max_len: int | None = None
    """The longest prompt in tokens: the servers' context minus the room for an answer."""
    expected: int = Field(default=512, ge=1)
    """For planning: the expected tokens of an answer if the data has no answer in its place."""
    bad: Literal["error", "drop"] = "error"
    """Whether a prompt that cannot be used ends the preparation with an error, or is dropped and counted."""
    keys: dict[OwnKey, str] = Field(default_factory=dict)
    ignore: list[str] = Field(default_factory=list)
    template_options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    date: str = ""
    trust_remote_code: bool = False
    processes: int | None = None


class PromptsResult(Message):
    """The dataset that was made; `reused` if the same prompts were there already."""

    out: str
    manifest: Manifest
    turns: int
    """The number of answers, including later turns of conversations."""
    expected_tokens: int
    reused: bool = False


class AnswerSummary(Message):
    """The parts of a record in a host's ledger that the table of answers needs."""

    prompt: int
    """Tokens of the record's prompts that were not sampled, each counted once."""
    answer: int
    """Tokens that were sampled."""
    turns: int
    finish: dict[str, int]
    """Turns by the reason that the server gave: `stop` or `length`."""
    marks: list[Mark] = Field(default_factory=list)
    dropped: Mark | None = None
    """Why `inv prepare` leaves the record out; None if it uses the record."""
    changed: bool = False
    """Whether tokenizing the record's text again gives other ids."""
    rows: int = 1
    """The number of training records that the conversation makes."""
    ended: str = ""
    """Why the conversation ended before its last turn; "" if it did not."""


class AnswersRequest(Message):
    """Ask for the statistics of a run's answers, from a host's ledger."""

    run: RunIdentity


class AnswerTable(Message):
    """The statistics of the answers of one host, or of all hosts."""

    records: int = 0
    turns: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    finish: dict[str, int] = Field(default_factory=dict)
    marks: dict[str, int] = Field(default_factory=dict)
    dropped: dict[str, int] = Field(default_factory=dict)
    changed: int = 0
    ended: dict[str, int] = Field(default_factory=dict)
    lengths: dict[int, int] = Field(default_factory=dict)
    """Records by sampled tokens: the key n counts those with 2**(n-1) to 2**n - 1."""
    deterministic: bool = True
    """Whether the servers give the same answers for the same seed, according to their settings."""
    why_not: str = ""

    def add(self, other: AnswerTable) -> None:
        """Add the counts of `other`."""
        for name in ("records", "turns", "rows", "prompt_tokens", "answer_tokens", "changed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("finish", "marks", "dropped", "ended", "lengths"):
            mine = getattr(self, name)
            for key, count in getattr(other, name).items():
                mine[key] = mine.get(key, 0) + count
        self.deterministic = self.deterministic and other.deterministic
        self.why_not = self.why_not or other.why_not

    def count(self, one: AnswerSummary) -> None:
        """Add one record."""
        self.add(
            AnswerTable(
                records=1,
                turns=one.turns,
                rows=one.rows,
                prompt_tokens=one.prompt,
                answer_tokens=one.answer,
                finish=one.finish,
                marks=dict.fromkeys(one.marks, 1),
                dropped={one.dropped: 1} if one.dropped else {},
                changed=int(one.changed),
                ended={one.ended: 1} if one.ended else {},
                lengths={one.answer.bit_length(): 1},
            )
        )


class Turn(Message):
    """One answer, beside its ids in the record's file."""

    prompt: int
    """Tokens of the turn's prompt."""
    answer: int
    """Tokens that were sampled."""
    finish: str
    matched: int | str | None = None
    """The token id or the stop string that ended the answer."""
    text: str
    """The text of the sampled ids, for people and for the prompts of later turns. It is never tokenized for training.
    """
    cached: int = 0
    """Tokens of the prompt that the server had in its radix cache."""
    marks: list[Mark] = Field(default_factory=list)


class Account(Message):
    """The part `account` of a record's file, as JSON."""

    turns: list[Turn]
    summary: AnswerSummary
    seed: int | None = None
    """The seed of the first turn, from which the seeds of later turns are derived."""

    @model_validator(mode="after")
    def _has_turns(self) -> Account:
        if not self.turns:
            raise ValueError("a record of answers has at least one turn")
        return self
