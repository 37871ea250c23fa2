"""A run's work as it is given to a host, and as the host reports it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.messages.envelope import Message
from remote.messages.server import FinalNorm, ProcessRef


class Identity(Message):
    """What must not change under one run name; a resume with another value is refused with both named."""

    dataset: str
    """Digest from the dataset's manifest."""
    tokenizer: str
    model: str
    """The model's path and the digest of its `config.json`, as `PATH@DIGEST`."""
    boundaries: list[int]
    """The slots of a record, in order; the last one is n."""
    final: FinalNorm
    hidden_size: int
    dtype: str
    """Of the states on disk, as safetensors names it: `BF16` or `F32`."""


class Assignment(Message):
    """`assignment.json`: one host's records of one epoch. `tokens.safetensors` lies beside it and holds

    `index` int64 [N] global indices, `offset` int64 [N+1], `token_ids` int32 [offset[-1]].
    """

    run: str
    host: str
    epoch: int
    identity: Identity
    records: int
    tokens: int
    server_names: list[str] = Field(default_factory=lambda: ["main"])
    """Servers of this host that take the requests."""
    in_flight_tokens: int = 131_072
    parity_rate: float = 0.01
    """Share of the records whose final slot is checked against the server's own input logprobs."""
    min_free_bytes: int = 20 << 30
    """Take no new record while the shards' file system has less."""
    max_consecutive_failures: int = 20
    workers: int = 4
    """Collector threads that validate, hash and store."""
    vocab_size: int
    context_length: int
    then_stop: bool = False
    """End the servers when the run is complete."""


ExtractorStatus = Literal["running", "paused", "waiting", "complete", "stopped", "failed"]


class Counts(Message):
    """A run on a host, counted from its ledger."""

    assigned: int = 0
    done: int = 0
    quarantined: int = 0
    freed: int = 0
    """Done, delivered and deleted here."""
    tokens_assigned: int = 0
    tokens_done: int = 0
    bytes_done: int = 0


class ExtractorState(Message):
    """`runs/<run>/state.json`: written by the extractor, whole, about once a second."""

    run: str
    epoch: int
    status: ExtractorStatus
    cause: str = ""
    process: ProcessRef | None = None
    counts: Counts = Field(default_factory=Counts)
    tokens_per_second: float = 0.0
    """Over the last minute."""
    backpressure_seconds: float = 0.0
    retries: int = 0
    started_at: float = 0.0
    updated_at: float = 0.0


class ShardRow(Message):
    """A ledger row that may be pulled: the record is whole, checked and on this host's disk."""

    index: int
    rows: int
    size_bytes: int
    xxh3: str
    """xxh3-128 of the shard's (uncompressed) bytes, 32 hex digits."""
    epoch: int
    stored: Literal["plain", "compressed"] = "plain"
