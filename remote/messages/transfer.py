"""What a destination says about itself: one row a delivered record, and the manifest beside them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.messages.envelope import Message
from remote.messages.extract import Identity

Store = Literal["plain", "compressed"]


class DeliveredRow(Message):
    """A record that lies at the destination under its final name, whole and verified."""

    index: int
    rows: int
    size_bytes: int
    """Of the uncompressed shard."""
    xxh3: str
    """xxh3-128 of the uncompressed shard, 32 hex digits: equal to the host's ledger."""
    host: str
    epoch: int
    stored: Store = "plain"
    disk_bytes: int
    """Of the file here; less than `size_bytes` where it is stored compressed."""
    durable: bool = True
    """False where the file system of the destination cannot fsync."""
    delivered_at: float


class DestinationManifest(Message):
    """`roost/manifest.json`."""

    run: str
    identity: Identity | None
    """What the records are: dataset, model, boundaries, norm state; None where no plan was at hand."""
    convention: str = "boundary: state after k blocks"
    records: int
    """Of the dataset."""
    delivered: int
    delivered_tokens: int
    delivered_bytes: int
    hosts: dict[str, int] = Field(default_factory=dict)
    """Delivered records a host."""
    written_at: float
