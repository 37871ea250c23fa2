"""A dataset of token records, and the requests and answers of `prepare`, `inspect` and `assign`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from remote.shared.messages.envelope import Message
from remote.shared.messages.extract import Assignment

Ranges = list[tuple[int, int]]
"""Sorted, disjoint half-open ranges of global indices: `[(0, 3), (7, 8)]` is 0, 1, 2 and 7."""

OwnKey = Literal["prompt", "answer", "system", "reasoning", "messages", "tools"]
"""The parts of a record for which a person can name a key."""

SourceForm = Literal["jsonl", "json", "parquet", "arrow", "text", "answers"]
"""How a source is read. `text` has a prompt on each line; `answers` is a folder that answers were pulled to."""
MaskMethod = Literal["generation", "marker", "given"]
"""Where a loss mask comes from: the template's `{% generation %}` blocks (`generation`), the difference between
renderings (`marker`, in `remote.data.spans`), or an already tokenized source (`given`)."""


class Source(Message):
    """One input file as it was read."""

    path: str
    form: SourceForm
    xxh3: str
    """xxh3-128 of the file's bytes, 32 hex digits."""
    size_bytes: int
    records: int


class Drop(Message):
    """The records that were left out for one reason, the first few of them by name."""

    reason: str
    records: int
    tokens: int = 0
    """The tokens of those records that had been tokenized."""
    examples: list[str] = Field(default_factory=list)


class Manifest(Message):
    """`manifest.json` of a dataset. A row's number is the record's global index and never changes."""

    digest: str
    """xxh3-128 over the records' digests in the order of their indices: tokens, masks and order."""
    records: int
    tokens: int
    loss_tokens: int
    max_tokens: int
    """Length of the longest record."""
    sources: list[Source]
    drops: list[Drop]
    unread_files: list[str] = Field(default_factory=list)
    """Files of the input folders that were not read."""
    unread_keys: dict[str, int] = Field(default_factory=dict)
    """The number of messages with each key that the chat template does not read, by `ROLE.KEY`."""
    truncated: int = 0
    """Records that were cut to `max_len` tokens and kept."""
    tokenizer: str
    """Digest of everything that decides how text becomes ids (`remote.data.tokenizer`); "" without a tokenizer."""
    tokenizer_path: str
    template: str
    """xxh3-128 of the chat template's text."""
    template_options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    date: str = ""
    """The date that was given to the template, if the template asks for one."""
    mask: dict[MaskMethod, int]
    """The number of records by the method that made their loss mask."""
    seed: int | None
    """The seed of the shuffle; None if the order of the sources was kept."""
    max_len: int | None
    vocab_size: int
    """All ids are below this: the rows of the model's embedding, if its config was available."""
    kind: Literal["records", "prompts"] = "records"
    """Records that are trained on, or prompts that are answered first."""
    turns: int = 0
    """For prompts: the number of answers, including later turns of conversations."""
    format: int = 1


class PrepareRequest(Message):
    """Make a dataset of conversations."""

    inputs: list[str]
    """Files, or folders whose `.jsonl`, `.json`, `.parquet` and `.arrow` files are read in order of name. They may be
    compressed (`.gz`, `.zst`, `.bz2`, `.xz`) and may lie in a bucket (`s3://…`)."""
    out: str
    tokenizer: str
    """The folder of a model or tokenizer, or a name that transformers resolves. If all records are tokenized already,
    a folder with the model's `config.json` is enough."""
    chosen: bool = False
    """Read the chosen answers of preference pairs (`chosen`, `rejected`); without this, such pairs are refused."""
    keys: dict[OwnKey, str] = Field(default_factory=dict)
    """The records' own keys, such as `{"prompt": "ask", "answer": "reply"}`: `messages`, or both of those."""
    ignore: list[str] = Field(default_factory=list)
    """Keys of messages to leave out on purpose."""
    seed: int | None = 0
    """The seed of the shuffle; None keeps the order of the sources."""
    max_len: int | None = None
    too_long: Literal["drop", "truncate"] = "drop"
    min_len: int = 2
    """A drafter learns to predict the next token, and a record of one token has none."""
    bad: Literal["error", "drop"] = "error"
    """Whether an unusable record (unreadable, a mask of only 0 or only 1, an id outside the vocabulary) ends the
    preparation with an error, or is dropped and counted."""
    template_options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Further variables of the chat template, such as `{"enable_thinking": false}`."""
    date: str = ""
    """The ISO date for chat templates that write today's date into the prompt; "" means today."""
    trust_remote_code: bool = False
    processes: int | None = None
    """The number of processes; None means one for each core."""

    @model_validator(mode="after")
    def _keys_make_a_conversation(self) -> PrepareRequest:
        if self.keys and not ("messages" in self.keys or {"prompt", "answer"} <= self.keys.keys()):
            raise ValueError("keys must name messages, or both prompt and answer")
        return self


class PrepareResult(Message):
    """The dataset that was made; `reused` if the same dataset was there already."""

    out: str
    manifest: Manifest
    histogram: list[tuple[int, int, int]]
    """(from, to, records): the number of records with a length in [from, to) tokens."""
    reused: bool = False
    wall_seconds: float = 0.0


class InspectRequest(Message):
    """Show records as a trainer sees them."""

    dataset: str
    indices: list[int] = Field(default_factory=list)
    tokenizer: str | None = None
    """The tokenizer; None means the path in the manifest."""
    trust_remote_code: bool = False


class Piece(Message):
    """A run of tokens with the same mask."""

    text: str
    masked: bool
    """Whether these tokens count for the loss (the assistant's tokens do)."""
    tokens: int


class InspectedRecord(Message):
    """One record, decoded in pieces."""

    index: int
    origin: str
    """`FILE:NUMBER`, the record's place in its source."""
    tokens: int
    loss_tokens: int
    pieces: list[Piece]
    note: str = ""
    """For an answer: its turns, how they ended, and its marks."""


class InspectResult(Message):
    """The manifest; the records were streamed as items."""

    manifest: Manifest


class HostShare(Message):
    """One host's assignment; the verb counts `assignment.records` and `.tokens`."""

    assignment: Assignment
    ranges: Ranges
    folder: str
    """The folder for `assignment.json` and `tokens.safetensors`; created if missing."""

    @model_validator(mode="after")
    def _ranges_are_sorted(self) -> HostShare:
        last = -1
        for start, stop in self.ranges:
            if start < last or start >= stop or start < 0:
                raise ValueError("ranges must be sorted, disjoint and not empty")
            last = stop
        return self


class AssignRequest(Message):
    """Write assignment folders, ready to be pushed."""

    dataset: str
    shares: list[HostShare]


class AssignResult(Message):
    """The assignments as written, in the order of the request."""

    assignments: list[Assignment]
    size_bytes: list[int]
    """The bytes of each `tokens.safetensors`."""
