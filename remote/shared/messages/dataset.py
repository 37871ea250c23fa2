"""A dataset of token records, and the verbs that make and read one (`prepare`, `inspect`, `assign`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from remote.shared.messages.envelope import Message
from remote.shared.messages.extract import Assignment

Ranges = list[tuple[int, int]]
"""Sorted, disjoint half-open ranges of global indices: `[(0, 3), (7, 8)]` is 0, 1, 2 and 7."""

OwnKey = Literal["prompt", "answer", "system", "reasoning", "messages", "tools"]
"""What a person's own key of a record can stand for."""

SourceForm = Literal["jsonl", "json", "parquet", "arrow"]
MaskMethod = Literal["generation", "marker", "given"]
"""Where a loss mask comes from: the template's own `{% generation %}` blocks, the difference between renderings
(`remote.data.spans`), or an already tokenized source."""


class Source(Message):
    """One input file as it was read."""

    path: str
    form: SourceForm
    xxh3: str
    """xxh3-128 of the file's bytes, 32 hex digits."""
    size_bytes: int
    records: int


class Drop(Message):
    """Records that were left out for one reason, with the first few of them by name."""

    reason: str
    records: int
    tokens: int = 0
    """Tokens lost with them, where they were tokenized at all."""
    examples: list[str] = Field(default_factory=list)


class Manifest(Message):
    """`manifest.json` of a dataset. Row number = global index, for ever."""

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
    """Keys of messages that the chat template does not read, as `ROLE.KEY`, with how many messages have them."""
    truncated: int = 0
    """Records that were cut to `max_len` tokens and kept."""
    tokenizer: str
    """Digest of everything that decides how text becomes ids (`remote.data.tokenizer`); "" if there was none."""
    tokenizer_path: str
    template: str
    """xxh3-128 of the chat template's text."""
    template_options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    date: str = ""
    """The day that the template was told, where it asks for one."""
    mask: dict[MaskMethod, int]
    """Records by the method that made their loss mask."""
    seed: int | None
    """None: the order of the sources was kept."""
    max_len: int | None
    vocab_size: int
    """Ids are below this; the model's embedding rows where its config was at hand."""
    format: int = 1


class PrepareRequest(Message):
    """Make a dataset of conversations."""

    inputs: list[str]
    """Files, or folders whose `.jsonl`, `.json`, `.parquet` and `.arrow` files are read in order of name, each also
    compressed (`.gz`, `.zst`, `.bz2`, `.xz`); here, or in a bucket (`s3://…`)."""
    out: str
    tokenizer: str
    """A model's or tokenizer's folder, or a name that transformers resolves; for tokenized records alone, a folder
    with the model's `config.json` is enough."""
    chosen: bool = False
    """Read the chosen answers of preference pairs (`chosen`, `rejected`), which are refused otherwise."""
    keys: dict[OwnKey, str] = Field(default_factory=dict)
    """The records' own keys, as in `{"prompt": "ask", "answer": "reply"}`: `messages`, or both of these."""
    ignore: list[str] = Field(default_factory=list)
    """Keys of messages that are left out on purpose."""
    seed: int | None = 0
    """Of the shuffle; None keeps the order of the sources."""
    max_len: int | None = None
    too_long: Literal["drop", "truncate"] = "drop"
    min_len: int = 2
    """A drafter learns to predict the next token: a record of one token has none."""
    bad: Literal["error", "drop"] = "error"
    """A record that cannot be used (unreadable, a mask that is all 0 or all 1, an id outside the vocabulary)
    ends the preparation, or is dropped and counted."""
    template_options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Further variables of the chat template, as in `{"enable_thinking": false}`."""
    date: str = ""
    """ISO day for chat templates that write today's date into the prompt; default: today."""
    trust_remote_code: bool = False
    processes: int | None = None
    """Default: one a core."""

    @model_validator(mode="after")
    def _keys_make_a_conversation(self) -> PrepareRequest:
        if self.keys and not ("messages" in self.keys or {"prompt", "answer"} <= self.keys.keys()):
            raise ValueError("keys must name messages, or both prompt and answer")
        return self


class PrepareResult(Message):
    """What was made; `reused` when the same dataset was there already."""

    out: str
    manifest: Manifest
    histogram: list[tuple[int, int, int]]
    """(from, to, records) by length in tokens, half open."""
    reused: bool = False
    wall_seconds: float = 0.0


class InspectRequest(Message):
    """Show records as a trainer sees them."""

    dataset: str
    indices: list[int] = Field(default_factory=list)
    tokenizer: str | None = None
    """Default: the path in the manifest."""
    trust_remote_code: bool = False


class Piece(Message):
    """A run of tokens with the same mask."""

    text: str
    masked: bool
    """True where the loss is taken (the assistant's tokens)."""
    tokens: int


class InspectedRecord(Message):
    """One record, decoded piece by piece."""

    index: int
    origin: str
    """`FILE:NUMBER`, the record's place in its source."""
    tokens: int
    loss_tokens: int
    pieces: list[Piece]


class InspectResult(Message):
    """The manifest; the records themselves were streamed as items."""

    manifest: Manifest


class HostShare(Message):
    """One host's assignment and the records in it; `assignment.records` and `.tokens` are counted by the verb."""

    assignment: Assignment
    ranges: Ranges
    folder: str
    """Where `assignment.json` and `tokens.safetensors` go; made when missing."""

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
    """Of each `tokens.safetensors`."""
