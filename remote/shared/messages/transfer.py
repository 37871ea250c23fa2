"""A pull: its request, its progress, and the two descriptions of a destination.

A destination is described by a row for each delivered record, and by its manifest.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity

Store = Literal["plain", "compressed"]
Compress = Literal["never", "auto", "always"]


class DeliveredRow(Message):
    """A complete and verified record at the destination, under its final name."""

    index: int
    rows: int
    size_bytes: int
    """The bytes of the uncompressed shard."""
    xxh3: str
    """The xxh3-128 of the uncompressed shard, 32 hex digits, equal to the digest in the host's ledger."""
    host: str
    epoch: int
    stored: Store = "plain"
    disk_bytes: int
    """The bytes of the file here, fewer than `size_bytes` if it is stored compressed."""
    durable: bool = True
    """False if the destination's file system cannot fsync."""
    delivered_at: float


class DestinationManifest(Message):
    """`roost/manifest.json`."""

    identity: RunIdentity
    """The run of these records. Records of another run are never delivered here."""
    identity_digest: str
    """The identity's own digest, which exposes an identity that was edited by hand."""
    convention: str = "boundary: state after k blocks"
    records: int
    """The number of records in the dataset."""
    delivered: int
    delivered_tokens: int
    delivered_bytes: int
    hosts: dict[str, int] = Field(default_factory=dict)
    """The number of records that each host delivered."""
    written_at: float

    @property
    def run(self) -> str:
        """The run's name."""
        return self.identity.name


class Limits(Message):
    """Settings of a person; None means that the pull finds the value by measuring."""

    streams: int | None = None
    bytes_per_second: float | None = None
    """The limit for all streams of all hosts together."""
    compress: Compress = "never"
    """Compression on the wire; `auto` tries both and keeps the one with more plain bytes per second."""


class Wish(Message):
    """A person's options for one pull."""

    run: str
    limits: Limits = Field(default_factory=Limits)
    follow: bool = False
    free: bool = False
    """Let each host delete the records that are durable at the destination."""
    check: bool = False
    """Read the records of earlier pulls again; a damaged record is pulled again."""


class Source(Message):
    """A host that records come from, and how the pulling side reaches it."""

    name: str
    sender: list[str]
    """The argv that starts a sender on the host; the last argument is the sender's source, quoted if ssh runs it."""
    codec_sender: list[str]
    """The same with the packages of the host's Python, for compression in flight or at rest; it starts more slowly."""
    verbs: list[str] = Field(default_factory=list)
    """The argv that runs a verb there, which reads its `Call` from stdin; empty if the laptop's connection does it."""
    workdir: str = ""
    root: str
    """The folder of the run's shards on the host; `~` is the home directory there."""
    payload: str = ""
    """The folder on the host that holds `remote/`."""
    share_records: int = 0
    """The number of records that the plan gives the host; 0 without a share."""
    share_bytes: int = 0
    """The approximate size of their shards."""


class HostTally(Message):
    """The progress of the pull from one host; the engine changes it while other threads read it."""

    offered: int = 0
    present: int = 0
    """Records that an earlier pull delivered."""
    present_bytes: int = 0
    wanted_bytes: int = 0
    """The bytes of offered records that were not present."""
    share_records: int = 0
    """With `--follow`, the records that the plan gives this host, so that progress is the run's; else 0."""
    share_bytes: int = 0
    wire_bytes: int = 0
    plain_bytes: int = 0
    """The received bytes after unpacking; equal to `wire_bytes` if nothing was compressed."""
    kept_bytes: int = 0
    """Bytes of an interrupted pull that were found intact."""
    delivered: int = 0
    delivered_bytes: int = 0
    not_durable: int = 0
    """Delivered records whose files could not be fsynced, so their hosts keep them."""
    failed: dict[int, str] = Field(default_factory=dict)
    """The reason for each record that was given up."""
    damaged: list[int] = Field(default_factory=list)
    """Records of earlier pulls whose files were found damaged; they are pulled again."""
    freed: int = 0
    freed_bytes: int = 0
    streams: int = 0
    """The number of streams that brought any bytes."""
    seconds: float = 0.0
    """The time in which streams were open."""
    compressed: bool = False
    """Whether the last ranges came compressed."""
    status: str = ""
    """The status of the host's extractor."""
    waiting: str = ""
    """While following: why no records come at the moment."""
    looked_only: bool = False
    """Whether this was a dry run."""
    has_share: bool = True
    """Whether the run has anything to do with this host."""

    @property
    def done_bytes(self) -> int:
        """The bytes, out of `total_bytes`, that are at the destination."""
        arrived = self.plain_bytes + self.kept_bytes
        return arrived + self.present_bytes if self.share_bytes else arrived

    @property
    def total_bytes(self) -> int:
        """The bytes to come in all: the host's share of the run while following, else the offered records."""
        return max(self.share_bytes, self.present_bytes + self.wanted_bytes) if self.share_bytes else self.wanted_bytes


class FetchRequest(Message):
    """Let this host pull from other hosts into a folder of its own (verb `fetch`)."""

    to: str
    dataset: str
    """The folder on this host with the dataset's files; "" if the laptop has none. A dry run does not read it."""
    identity: RunIdentity
    records: int
    """The number of records in the dataset."""
    lengths: list[int]
    """The number of tokens of every record, to check a source's offers against; empty if there is no dataset."""
    store: Store = "plain"
    wish: Wish
    dry_run: bool = False
    """Only report what a pull would do; write nothing."""
    elsewhere: list[tuple[int, int]] = Field(default_factory=list)
    """With `wish.free`: ranges of records that only a folder still holds, because the hosts have deleted them."""
    sources: list[Source]


class FetchNews(Message):
    """One streamed item of `fetch`: the progress of one source, or the error that ended it."""

    name: str
    tally: HostTally
    kind: str = ""
    """The error's `Failure.kind`; empty without an error."""
    error: str = ""
    remedy: str = ""


class FetchResult(Message):
    """The destination after the pull."""

    manifest: DestinationManifest | None
    """None if there was nothing to pull."""
    missing: list[tuple[int, int]]
    """The ranges of indices that are missing."""
