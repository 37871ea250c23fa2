"""Answers that the model samples itself: how they are asked for, what a host says of them, and what one is as a file.

A run of answers is a run like any other; its identity carries the settings. A prompt is one row of a dataset of
prompts (`PromptsRequest`); its record is one conversation as it was answered.
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
    """Tokens that must be left for an answer."""
    return min(_LEAST_ANSWER, settings.max_tokens)


def longest_prompt(context: int, settings: Answering) -> int:
    """Tokens of the longest prompt that leaves room for an answer."""
    return longest_record(context) - least_answer(settings)


class PromptsRequest(Message):
    """Make a dataset of prompts: each row is what the model is asked first, and the conversation to go on with."""

    inputs: list[str]
    """As `prepare` reads them; also text files (`.txt`) with a prompt a line."""
    out: str
    tokenizer: str
    turns: Turns = "all"
    samples: int = Field(default=1, ge=1)
    """Answers a prompt: as many rows, one after the other."""
    max_len: int | None = None
    """The longest prompt in tokens: the servers' context less the room for an answer."""
    expected: int = Field(default=512, ge=1)
    """Tokens of an answer that nothing is known of, for planning."""
    bad: Literal["error", "drop"] = "error"
    """A prompt that cannot be used ends the preparation, or is dropped and counted."""
    keys: dict[OwnKey, str] = Field(default_factory=dict)
    ignore: list[str] = Field(default_factory=list)
    template_options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    date: str = ""
    trust_remote_code: bool = False
    processes: int | None = None


class PromptsResult(Message):
    """What was made; `reused` if the same prompts were there already."""

    out: str
    manifest: Manifest
    turns: int
    """Answers that the prompts ask for, later turns of conversations included."""
    expected_tokens: int
    reused: bool = False


class AnswerSummary(Message):
    """One record in a host's ledger, as far as the table of answers needs it."""

    prompt: int
    """Tokens of its prompts that were not sampled, each counted once."""
    answer: int
    """Tokens that were sampled."""
    turns: int
    finish: dict[str, int]
    """Turns by the reason that the server gave: `stop` or `length`."""
    marks: list[Mark] = Field(default_factory=list)
    dropped: Mark | None = None
    """Why `inv prepare` leaves the record out; None if it takes it."""
    changed: bool = False
    """Whether tokenizing its text again gives other ids."""
    rows: int = 1
    """Training records that it makes."""
    ended: str = ""
    """Why a conversation ended before its last turn."""


class AnswersRequest(Message):
    """What a host's ledger says about the answers of one run."""

    run: RunIdentity


class AnswerTable(Message):
    """Answers counted: of one host, or of all."""

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
    """Whether the servers give the same answers for the same seed, as far as they say."""
    why_not: str = ""

    def add(self, other: AnswerTable) -> None:
        """Count what `other` counted."""
        for name in ("records", "turns", "rows", "prompt_tokens", "answer_tokens", "changed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("finish", "marks", "dropped", "ended", "lengths"):
            mine = getattr(self, name)
            for key, count in getattr(other, name).items():
                mine[key] = mine.get(key, 0) + count
        self.deterministic = self.deterministic and other.deterministic
        self.why_not = self.why_not or other.why_not

    def count(self, one: AnswerSummary) -> None:
        """Count one record."""
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
    """Tokens that were sent for it."""
    answer: int
    """Tokens that were sampled."""
    finish: str
    matched: int | str | None = None
    """What ended it: a token's id or a stop string."""
    text: str
    """The sampled ids decoded, once; nothing is ever made of it but what a person reads, and later turns' prompts."""
    cached: int = 0
    """Tokens of the prompt that the server had computed before."""
    marks: list[Mark] = Field(default_factory=list)


class Account(Message):
    """The part `account` of a record's file, as JSON."""

    turns: list[Turn]
    summary: AnswerSummary
    seed: int | None = None
    """The seed of its first turn; the others' are derived from it."""

    @model_validator(mode="after")
    def _has_turns(self) -> Account:
        if not self.turns:
            raise ValueError("a record of answers has at least one turn")
        return self
