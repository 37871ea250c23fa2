"""Compressed shards made plain again (`unpack`), and plain ones compressed at rest (`compress`)."""

from __future__ import annotations

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity


class UnpackRequest(Message):
    """Containers, or folders whose containers (`*.rz`) are all meant."""

    paths: list[str]
    out: str = ""
    """Folder that gets the plain shards; "": each lands beside its container."""
    remove: bool = False
    """Delete each container once its plain shard is durable and verified."""
    processes: int = 0
    """0: one a core."""


class UnpackResult(Message):
    """What became of them."""

    unpacked: int
    present: int = 0
    """Plain and right already."""
    packed_bytes: int
    plain_bytes: int
    failed: dict[str, str] = Field(default_factory=dict)
    """Containers that are damaged, by path, with the reason."""


class CompressRequest(Message):
    """Compress a run's finished shards where they lie."""

    identity: RunIdentity
    processes: int = 0
    """0: half of the cores, since servers run beside it."""
    dry_run: bool = False
    """Count, and measure the ratio on a sample; change nothing."""


class CompressResult(Message):
    """What became of them."""

    compressed: int
    plain: int = 0
    """Shards that would be compressed."""
    sampled: int = 0
    """With `dry_run`: shards that were compressed aside, to measure how far they shrink."""
    ratio: float = 0.0
    """Bytes of the sample's containers over its plain bytes; 0 without a sample."""
    plain_bytes: int = 0
    """Of what was compressed, or would be."""
    packed_bytes: int = 0
    failed: dict[int, str] = Field(default_factory=dict)
    """Records whose shard stays plain, with the reason."""
