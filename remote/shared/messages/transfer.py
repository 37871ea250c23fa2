"""What a destination says about itself: one row a delivered record, and the manifest beside them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.run import RunIdentity

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


class FetchSource(Message):
    """A host to pull from, as the pulling host reaches it, and the records that it offers."""

    name: str
    command: list[str]
    """Starts a sender: an argv; over ssh it logs in with the pulling host's own keys and known hosts."""
    root: str
    payload: str = ""
    rows: list[ShardRow]


class FetchRequest(Message):
    """The verb `fetch`: this host pulls from others into a folder of its own."""

    to: str
    dataset: str
    """Folder on this host that holds the dataset's files."""
    identity: RunIdentity
    records: int
    """Of the dataset."""
    store: Store = "plain"
    streams: int | None = None
    bytes_per_second: float | None = None
    compress: Literal["never", "auto", "always"] = "never"
    check: bool = False
    free: bool = False
    """Whether the sources are to free what arrives: refused where it cannot be made durable."""
    dry_run: bool = False
    """Only tell what is there; `dataset` is not looked at."""
    sources: list[FetchSource]


class FetchReport(Message):
    """What one source came to, so far."""

    wanted_bytes: int = 0
    present: int = 0
    wire_bytes: int = 0
    plain_bytes: int = 0
    kept_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    failed: dict[int, str] = Field(default_factory=dict)
    streams: int = 0
    seconds: float = 0.0
    error: str = ""
    remedy: str = ""

    def after(self, earlier: FetchReport) -> FetchReport:
        """What both came to, one after the other."""
        sums = ("wanted_bytes", "present", "wire_bytes", "plain_bytes", "kept_bytes", "delivered", "delivered_bytes")
        both: dict[str, object] = {name: getattr(earlier, name) + getattr(self, name) for name in (*sums, "seconds")}
        both["streams"] = max(earlier.streams, self.streams)
        both["failed"] = {**earlier.failed, **self.failed}
        return self.model_copy(update=both)


class FetchNews(Message):
    """One streamed item of `fetch`: how far one source is, and what has become durable since the last one."""

    name: str
    present: list[int] = Field(default_factory=list)
    """Delivered earlier, found intact just now."""
    delivered: list[int] = Field(default_factory=list)
    report: FetchReport | None = None


class FetchResult(Message):
    """The destination as it is now."""

    manifest: DestinationManifest | None
    """None where nothing was to be pulled."""
    missing: list[tuple[int, int]]
    """Ranges of indices that are not there."""
