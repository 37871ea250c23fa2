"""The requests and answers of `unpack` (containers to plain shards) and `compress` (plain shards to containers)."""

from __future__ import annotations

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity


class UnpackRequest(Message):
    """Unpack containers, or all containers (`*.rz`) in folders."""

    paths: list[str]
    out: str = ""
    """The folder for the plain shards; if "", each shard goes beside its container."""
    remove: bool = False
    """Delete each container once its plain shard is durable and verified."""
    processes: int = 0
    """The number of processes; 0 means one for each core."""


class UnpackResult(Message):
    """What became of them."""

    unpacked: int
    present: int = 0
    """Shards that were plain and intact already."""
    packed_bytes: int
    plain_bytes: int
    failed: dict[str, str] = Field(default_factory=dict)
    """The reason for each damaged container, by path."""


class CompressRequest(Message):
    """Compress a run's finished shards in place."""

    identity: RunIdentity
    processes: int = 0
    """The number of processes; 0 means half of the cores, because servers run at the same time."""
    dry_run: bool = False
    """Only count the shards and measure the ratio on a sample."""


class CompressResult(Message):
    """What became of them."""

    compressed: int
    plain: int = 0
    """Shards that would be compressed."""
    sampled: int = 0
    """With `dry_run`: the shards of the sample, which were compressed to temporary files."""
    ratio: float = 0.0
    """The sample's compressed bytes divided by its plain bytes; 0 without a sample."""
    plain_bytes: int = 0
    """The plain bytes of the shards that were compressed (with `dry_run`: that would be)."""
    packed_bytes: int = 0
    failed: dict[int, str] = Field(default_factory=dict)
    """The reason for each record whose shard stays plain."""
