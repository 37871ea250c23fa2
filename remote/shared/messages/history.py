"""The history that each host keeps of its runs and servers, and what a host says of itself at one moment."""

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
"""`trouble`: something happened to a server and was mended. `gap`: nothing was recorded for a while.
`untold`: a notification could not be delivered. `history`: a history that could not be read was set aside.
`lost`: said by the laptop of a host that does not answer."""


class Event(Message):
    """Something that happened to a run or a server of a host."""

    at: float
    """Unix time in seconds, by the host's clock."""
    kind: EventKind
    subject: str
    """`run kimi-1` or `server main`."""
    text: str


class Point(Message):
    """What a history says of `step` seconds that began at `at`: a value for each series."""

    at: float
    step: float
    values: dict[str, float]


class GpuReading(Message):
    """One GPU at one moment; None for what the driver does not tell."""

    index: int
    use_percent: float | None = None
    memory_bytes: float | None = None
    total_bytes: float | None = None
    watts: float | None = None
    celsius: float | None = None
    megahertz: float | None = None


class RunReading(Message):
    """A run at one moment, from its extractor's own last word."""

    run: str
    alive: bool
    word: str
    """As `RunStatus.word`."""
    wished: Literal["pause", "resume", "stop"] = "resume"
    state: ExtractorState
    disk_free_bytes: float = 0.0
    disk_total_bytes: float = 0.0
    """Of the shards' file system."""
    freed: int | None = None
    """Records that were delivered and deleted here; None if this reading did not count them."""
    capture_wait_seconds: float = 0.0
    """Time that the servers' forward passes waited for capture: dump directory or staging memory full."""

    @property
    def rate(self) -> float:
        """Tokens a second that it extracts now: the last minute's, and 0 if it is paused or nothing is at work."""
        return self.state.tokens_per_second if self.alive and self.word != "paused" else 0.0


class ServerReading(Message):
    """A server at one moment: its record, and what SGLang says about its queue."""

    name: str
    mode: str
    status: ServerStatus
    start: int = 1
    restarts: int = 0
    alive: bool = False
    cause: str = ""
    trouble: str = ""
    queued: float | None = None
    """Requests that wait in SGLang; None if SGLang has not said it lately."""
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
    """Dumps that lie in the RAM disk."""
    ram_free_bytes: float | None = None
    """Free in the RAM disk; None if no server that captures runs."""


class NotifySettings(Message):
    """Where a host sends its notifications. The address may hold a secret: it is shown and logged nowhere."""

    webhook: str
    form: Literal["json", "slack"] = "json"


class Settings(Message):
    """What the recorder was told; kept on the host, readable by its user alone."""

    host: str = ""
    """The host's name in the inventory."""
    notify: NotifySettings | None = None
    runs: list[str] = Field(default_factory=list)
    """Runs that notifications are sent for."""
    stall_seconds: float = 600.0
    min_free_bytes: int = 0
    idle_stop_seconds: float | None = None


class RecordRequest(Message):
    """Keep a history on this host from now on, and tell, stop and judge by these settings."""

    host: str
    """The host's name in the inventory."""
    notify: NotifySettings | None = None
    """None leaves earlier settings as they are."""
    run: str = ""
    """With `notify`: tell about this run as well as about servers."""
    min_free_bytes: int = 0
    """Below so much free space on the shards' disk, a run takes no new record."""
    stall_seconds: float = 600.0
    """A run that should work and has finished no record for so long is stalled."""
    idle_stop_seconds: float | None = None
    """End servers that no run needed for so long."""


class RecordResult(Message):
    """The recorder that keeps the history."""

    pid: int
    started: bool
    """Whether this call started it."""
    notify_problem: str = ""
    """Why the webhook cannot be reached from this host, if it cannot."""


class RecorderRequest(Message):
    """Be this host's recorder until nothing is left to record; started by the verb `record`."""

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
    """These series alone; none means all."""
    most: int = 2_000
    """At most so many points: neighbours are merged."""


class HistoryItem(Message):
    """One streamed item: points in order of time."""

    points: list[Point]


class HistoryResult(Message):
    """What is not a series; the points were streamed before."""

    events: list[Event] = Field(default_factory=list)
    points: int = 0
    problem: str = ""
    """Why there is no history, or not all of it, in one sentence; and what to do."""


class GlanceRequest(Message):
    """Stream a `Glance` at once and every `every_seconds`, until the caller leaves; with `once`, only the first."""

    run: str = ""
    """This run alone; "" for every run at work, or else the newest one."""
    every_seconds: float = 2.0
    once: bool = False
    events: int = 20
    """At most so many of the newest events."""


class Glance(Message):
    """A host as `inv watch` shows it."""

    reading: Reading
    recent: list[Point] = Field(default_factory=list)
    """With the first item: the last half hour of each shown run's rate. Empty in the later ones."""
    events: list[Event] = Field(default_factory=list)
    worked_seconds: dict[str, float] = Field(default_factory=dict)
    """For how long each run has been at work on this host, over all its sessions, by the history."""
    problem: str = ""
    """Why there is no history, in one sentence."""


class GlanceEnd(Message):
    """The stream ended because one glance was asked for."""


class Histogram(Message):
    """How many values fall between neighbouring edges."""

    edges: list[float] = Field(default_factory=list)
    counts: list[int] = Field(default_factory=list)


class RunAccount(Message):
    """What a host's ledger says of a run, for a report; a delivered run carries it to its destination."""

    run: str
    epoch: int = 0
    boundaries: list[int] = Field(default_factory=list)
    counts: Counts = Field(default_factory=Counts)
    status: str = ""
    cause: str = ""
    causes: dict[str, int] = Field(default_factory=dict)
    """Of the quarantined records."""
    lengths: Histogram = Field(default_factory=Histogram)
    """Tokens of the finished records."""
    norms: list[Histogram] = Field(default_factory=list)
    """Mean norm of the finished records (or of a sample), for each slot."""
    parity_checked: int = 0
    parity_excess: Histogram = Field(default_factory=Histogram)
    """Largest difference of a compared record, in units of what rounding explains: 1 is the limit."""
    flagged: int = 0
    retried: int = 0
    """Finished records that took more than one try."""
    canaries: dict[str, str] = Field(default_factory=dict)
    """What each server's canary came to."""
    first_at: float = 0.0
    last_at: float = 0.0
    """When the first and the last record were finished."""
    versions: dict[str, str] = Field(default_factory=dict)
    commands: dict[str, list[str]] = Field(default_factory=dict)
    """Each server's command, without secrets."""


class AccountRequest(Message):
    """The account of one run."""

    run: str
