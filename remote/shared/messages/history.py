"""The history that each host keeps of its runs and servers, and a reading of a host at one moment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.extract import Counts, ExtractorState
from remote.shared.messages.server import ServerStatus

SubjectKind = Literal["run", "server"]

EventKind = Literal[
    "started", "ready", "restarted", "failed", "stopped", "finished", "paused", "resumed", "waiting", "stalled",
    "quarantined", "freed", "disk-low", "parity-failed", "idle-stopped", "trouble", "gap", "untold", "history", "lost",
]  # fmt: skip
"""`trouble`: a fault of a server was repaired. `gap`: nothing was recorded for a while. `untold`: a notification could
not be delivered. `history`: a history that could not be read was set aside. `lost`: a host does not answer; only a
laptop reports this event.
"""


class Event(Message):
    """An event of a run or a server on a host."""

    at: float
    """Unix time in seconds, by the host's clock."""
    kind: EventKind
    subject: str
    """`run kimi-1` or `server main`."""
    text: str


class Point(Message):
    """The values of a history for the `step` seconds from `at`: one value for each series."""

    at: float
    step: float
    values: dict[str, float]


class GpuReading(Message):
    """One GPU at one moment; None for values that the driver does not report."""

    index: int
    use_percent: float | None = None
    memory_bytes: float | None = None
    total_bytes: float | None = None
    watts: float | None = None
    celsius: float | None = None
    megahertz: float | None = None


class RunReading(Message):
    """A run at one moment, from its extractor's last state."""

    run: str
    alive: bool
    word: str
    """The run's status, as in `RunStatus.word`."""
    wished: Literal["pause", "resume", "stop"] = "resume"
    state: ExtractorState
    disk_free_bytes: float = 0.0
    disk_total_bytes: float = 0.0
    """Free bytes on the shards' file system."""
    freed: int | None = None
    """Records that were delivered and deleted here; None if this reading did not count them."""
    capture_wait_seconds: float = 0.0
    """Time that the servers' forward passes waited for capture: dump directory or staging memory full."""

    @property
    def rate(self) -> float:
        """Return the tokens per second of the last minute; 0 if the run is paused or does not work."""
        return self.state.tokens_per_second if self.alive and self.word != "paused" else 0.0


class ServerReading(Message):
    """A server at one moment: its record, and SGLang's numbers on its queue."""

    name: str
    mode: str
    status: ServerStatus
    start: int = 1
    restarts: int = 0
    alive: bool = False
    cause: str = ""
    trouble: str = ""
    queued: float | None = None
    """Requests that wait in SGLang; None if SGLang did not report the number recently."""
    running: float | None = None
    prefill_tokens_per_second: float | None = None


class Reading(Message):
    """A host at one moment."""

    at: float
    runs: list[RunReading] = Field(default_factory=list)
    servers: list[ServerReading] = Field(default_factory=list)
    gpus: list[GpuReading] = Field(default_factory=list)
    gpu_problem: str = ""
    """Why there are no GPU readings, in one sentence."""
    dump_bytes: float = 0.0
    """Bytes of dumps in the RAM disk."""
    ram_free_bytes: float | None = None
    """Free bytes in the RAM disk; None if no capturing server runs."""


class NotifySettings(Message):
    """Where a host sends its notifications. The address may contain a secret, so it is never shown or logged."""

    webhook: str
    form: Literal["json", "slack"] = "json"


class Settings(Message):
    """The recorder's settings, kept on the host in a file that only its user can read."""

    host: str = ""
    """The host's name in the inventory."""
    notify: NotifySettings | None = None
    runs: list[str] = Field(default_factory=list)
    """The runs for which notifications are sent."""
    stall_seconds: float = 600.0
    min_free_bytes: int = 0
    idle_stop_seconds: float | None = None


class RecordRequest(Message):
    """Keep a history on this host from now on, and notify and stop idle servers by these settings."""

    host: str
    """The host's name in the inventory."""
    notify: NotifySettings | None = None
    """None keeps the earlier settings."""
    run: str = ""
    """With `notify`: the run for which notifications are sent, in addition to servers."""
    min_free_bytes: int = 0
    """The free bytes on the shards' disk below which a run begins no new record."""
    stall_seconds: float = 600.0
    """Seconds without a finished record after which a run that should work counts as stalled."""
    idle_stop_seconds: float | None = None
    """Seconds without work after which servers are stopped; None never stops them."""


class RecordResult(Message):
    """The recorder that keeps the history."""

    pid: int
    started: bool
    """Whether this call started it."""
    notify_problem: str = ""
    """Why the webhook cannot be reached from this host, if it cannot."""


class RecorderRequest(Message):
    """Be this host's recorder until no run or server works any more; started by the verb `record`."""

    every_seconds: float = 10.0


class RecorderEnd(Message):
    """The recorder has ended by itself."""

    looks: int
    why: str


class HistoryRequest(Message):
    """The history of a run, or of a server."""

    run: str = ""
    server: str = ""
    since: float = 0.0
    series: list[str] = Field(default_factory=list)
    """Only these series; if empty, all series."""
    most: int = 2_000
    """The largest number of points, because neighbouring points are merged."""


class HistoryItem(Message):
    """One streamed item: points in order of time."""

    points: list[Point]


class HistoryResult(Message):
    """The events of the history. Its points were streamed before."""

    events: list[Event] = Field(default_factory=list)
    points: int = 0
    problem: str = ""
    """One sentence on why there is no history, or only a part of it, and what to do; "" otherwise."""


class GlanceRequest(Message):
    """Stream a `Glance` at once and every `every_seconds`, until the caller leaves; with `once`, only the first."""

    run: str = ""
    """Only this run; "" for every working run, or else the newest run."""
    every_seconds: float = 2.0
    once: bool = False
    events: int = 20
    """The largest number of newest events."""


class Glance(Message):
    """A host as `inv watch` shows it."""

    reading: Reading
    recent: list[Point] = Field(default_factory=list)
    """In the first item: the last half hour of each shown run's rate. Empty in later items."""
    events: list[Event] = Field(default_factory=list)
    worked_seconds: dict[str, float] = Field(default_factory=dict)
    """Seconds for which each run has worked on this host, over all its sessions, by the history."""
    problem: str = ""
    """One sentence on why there is no history; "" if there is."""


class GlanceEnd(Message):
    """The end of the stream, if only one glance was requested."""


class Histogram(Message):
    """The numbers of values between neighbouring edges."""

    edges: list[float] = Field(default_factory=list)
    counts: list[int] = Field(default_factory=list)


class RunAccount(Message):
    """The statistics of a run from a host's ledger, for a report. A pull writes them to the destination too."""

    run: str
    epoch: int = 0
    boundaries: list[int] = Field(default_factory=list)
    counts: Counts = Field(default_factory=Counts)
    status: str = ""
    cause: str = ""
    causes: dict[str, int] = Field(default_factory=dict)
    """The causes of the quarantined records, with counts."""
    lengths: Histogram = Field(default_factory=Histogram)
    """Tokens of the finished records."""
    norms: list[Histogram] = Field(default_factory=list)
    """Mean norm of the finished records (or of a sample), for each slot."""
    parity_checked: int = 0
    parity_excess: Histogram = Field(default_factory=Histogram)
    """Largest difference of a compared record, in units of what rounding explains: 1 is the limit."""
    flagged: int = 0
    retried: int = 0
    """Finished records that took more than one attempt."""
    canaries: dict[str, str] = Field(default_factory=dict)
    """The result of each server's canary."""
    first_at: float = 0.0
    last_at: float = 0.0
    """When the first and the last record were finished."""
    versions: dict[str, str] = Field(default_factory=dict)
    commands: dict[str, list[str]] = Field(default_factory=dict)
    """Each server's command, without secrets."""


class AccountRequest(Message):
    """The account of one run."""

    run: str
