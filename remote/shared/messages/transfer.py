"""A pull: what is asked, how far it is, and what a destination says about itself.

A destination says it twice: one row a delivered record, and the manifest beside them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity

Store = Literal["plain", "compressed"]
Compress = Literal["never", "auto", "always"]


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

    identity: RunIdentity
    """The run whose records these are; no other run's are ever delivered here."""
    identity_digest: str
    """The identity's own digest: an identity that was edited by hand does not have it."""
    convention: str = "boundary: state after k blocks"
    records: int
    """Of the dataset."""
    delivered: int
    delivered_tokens: int
    delivered_bytes: int
    hosts: dict[str, int] = Field(default_factory=dict)
    """Delivered records a host."""
    written_at: float

    @property
    def run(self) -> str:
        """The run's name."""
        return self.identity.name


class Limits(Message):
    """What a person set; None is found by measuring."""

    streams: int | None = None
    bytes_per_second: float | None = None
    """For all streams of all hosts together."""
    compress: Compress = "never"
    """On the wire; `auto` tries and keeps what brings more plain bytes a second."""


class Wish(Message):
    """What a person asked of one pull."""

    run: str
    limits: Limits = Field(default_factory=Limits)
    follow: bool = False
    free: bool = False
    """Let each host delete what is durable at the destination."""
    check: bool = False
    """Read again what was delivered earlier; a record that is not intact is pulled anew."""


class Source(Message):
    """A host that records come from, as the side that pulls reaches it."""

    name: str
    sender: list[str]
    """Starts a sender there: an argv whose last argument is the sender's source, quoted for ssh where it is ssh."""
    codec_sender: list[str]
    """The same with the packages of its Python: for what is compressed, in flight or at rest. Starts more slowly."""
    verbs: list[str] = Field(default_factory=list)
    """Runs a verb there, which reads its `Call` from stdin; empty where the laptop's own connection does that."""
    workdir: str = ""
    root: str
    """Folder of the run's shards over there; `~` is the home directory there."""
    payload: str = ""
    """Folder over there that holds `remote/`."""
    share_records: int = 0
    """Records that the plan gives it; 0 where it has no share."""
    share_bytes: int = 0
    """About what their shards take."""


class HostTally(Message):
    """How far the pull from one host is; the engine changes it while others read it."""

    offered: int = 0
    present: int = 0
    """Records that an earlier pull had delivered."""
    present_bytes: int = 0
    wanted_bytes: int = 0
    """Of the records that were offered and not present."""
    share_records: int = 0
    """With `--follow`: records that the plan gives this host, so that progress is that of the run; else 0."""
    share_bytes: int = 0
    wire_bytes: int = 0
    plain_bytes: int = 0
    """What was received, unpacked: equal to `wire_bytes` where nothing was compressed."""
    kept_bytes: int = 0
    """Found right in what an interrupted pull had left."""
    delivered: int = 0
    delivered_bytes: int = 0
    not_durable: int = 0
    """Delivered records whose files could not be fsynced: their hosts keep them."""
    failed: dict[int, str] = Field(default_factory=dict)
    """Records given up, with the reason."""
    damaged: list[int] = Field(default_factory=list)
    """Records delivered earlier whose files were found damaged; they are pulled again."""
    freed: int = 0
    freed_bytes: int = 0
    streams: int = 0
    """That brought anything."""
    seconds: float = 0.0
    """While streams were open."""
    compressed: bool = False
    """Whether ranges came compressed in the end."""
    status: str = ""
    """Of the host's extractor."""
    waiting: str = ""
    """Why nothing comes now, while following."""
    looked_only: bool = False
    """Whether this was a dry run."""
    has_share: bool = True
    """Whether the run has anything to do with this host."""

    @property
    def done_bytes(self) -> int:
        """Bytes that are here, out of `total_bytes`."""
        arrived = self.plain_bytes + self.kept_bytes
        return arrived + self.present_bytes if self.share_bytes else arrived

    @property
    def total_bytes(self) -> int:
        """What is to come in all: of the host's share of the run while following, else of what it offers."""
        return max(self.share_bytes, self.present_bytes + self.wanted_bytes) if self.share_bytes else self.wanted_bytes


class FetchRequest(Message):
    """The verb `fetch`: this host pulls from others into a folder of its own."""

    to: str
    dataset: str
    """Folder on this host that holds the dataset's files; "" if the laptop has none. A dry run does not look at it."""
    identity: RunIdentity
    records: int
    """Of the dataset."""
    lengths: list[int]
    """Tokens of every record, by index: what a source offers is held against them. Empty if there is no dataset."""
    store: Store = "plain"
    wish: Wish
    dry_run: bool = False
    """Only tell what is there; nothing is written."""
    elsewhere: list[tuple[int, int]] = Field(default_factory=list)
    """With `wish.free`: ranges of records that no host has any more, because a folder has them already."""
    sources: list[Source]


class FetchNews(Message):
    """One streamed item of `fetch`: how far one source is, and the error that ended it."""

    name: str
    tally: HostTally
    kind: str = ""
    """The error's, as `Failure.kind`; empty where there is none."""
    error: str = ""
    remedy: str = ""


class FetchResult(Message):
    """The destination as it is now."""

    manifest: DestinationManifest | None
    """None where nothing was to be pulled."""
    missing: list[tuple[int, int]]
    """Ranges of indices that are not there."""
