"""A run's work as it is given to a host, and as the host reports it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.server import ProcessRef

_CONTEXT_RESERVED = 7
"""SGLang's scheduler keeps these for the answer and itself: 0.5.23 takes 4,089 of 4,096 tokens and refuses 4,090."""


def longest_record(context_length: int) -> int:
    """Tokens of the longest record that a server with this context takes."""
    return context_length - _CONTEXT_RESERVED


class Assignment(Message):
    """`assignment.json`: one host's records of one epoch. `tokens.safetensors` lies beside it and holds

    `index` int64 [N] global indices, `offset` int64 [N+1], `token_ids` int32 [offset[-1]].
    """

    identity: RunIdentity
    host: str
    epoch: int
    ranges: list[tuple[int, int]]
    """The global indices as sorted, disjoint, half-open ranges."""
    records: int
    tokens: int
    plan: str = ""
    """Digest of the plan that made this share; "" for a share that another launcher made, or that was taken away."""
    planned_by: str = ""
    """Who planned, as `user@laptop`."""
    planned_at: float = 0.0
    server_names: list[str] = Field(default_factory=lambda: ["main"])
    """Servers of this host that take the requests."""
    in_flight_tokens: int = 131_072
    parity_rate: float = 0.01
    """Share of the records whose final slot is checked against the server's own input logprobs: at least 8 records of
    every host, unless the share is 0."""
    min_free_bytes: int = 20 << 30
    """Take no new record while the shards' file system has less."""
    max_consecutive_failures: int = 20
    workers: int = 8
    """Collector threads that validate, hash and store: 6 GB/s on 16 cores (`benchmarks/collector.py`)."""
    vocab_size: int
    context_length: int
    then_stop: bool = False
    """End the servers when the run is complete."""
    store: Literal["plain", "compressed"] = "plain"
    """How shards are kept on this host's disk; digests and sizes are those of the plain bytes either way."""
    max_attempts: int = 3
    """Tries of one record before it is quarantined with its last cause."""
    request_timeout_seconds: float = 600.0
    """For one prefill, and again for its dump to appear: past it the request is aborted and tried anew."""
    server_wait_seconds: float = 1800.0
    """How long a run waits for a server that is not ready (a restart) before it fails with that cause."""

    @property
    def run(self) -> str:
        """The run's name."""
        return self.identity.name

    @property
    def task(self) -> Literal["extract"]:
        """The task that makes such records."""
        return "extract"


ExtractorStatus = Literal["running", "paused", "waiting", "complete", "stopped", "failed"]


class Counts(Message):
    """A run on a host, counted from its ledger."""

    assigned: int = 0
    done: int = 0
    quarantined: int = 0
    freed: int = 0
    """Done, delivered and deleted here."""
    beyond: int = 0
    """Done or freed here under an earlier epoch, and in no share of this host any more: not counted above."""
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
    """Time in which a record was ready to be sent and uncollected dumps held it back."""
    waited: dict[str, float] = Field(default_factory=dict)
    """Seconds of this session for which nothing new was sent, by cause: `paused`, `disk`, `server`, `ramdisk`."""
    in_flight: int = 0
    """Records that were sent and have not ended yet."""
    retries: int = 0
    quarantine_causes: dict[str, int] = Field(default_factory=dict)
    """Causes of this session's quarantined records, with how often each came."""
    flagged: int = 0
    """Records of this session kept although a slot's norm left the band that the run has seen."""
    parity_checked: int = 0
    """Records of this session whose final slot agreed with the server's own logprobs."""
    canaries_passed: int = 0
    """Canaries of this session that were captured rightly while the servers were busy."""
    parity_excess: float = 0.0
    """The largest difference among them, in units of what rounding explains."""
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


class ShardBatch(Message):
    """One streamed item of the verb `shards`: rows in the order in which they were finished."""

    rows: list[ShardRow]
    cursor: int
    """Give it back as `after` to be told only what is newer."""


class ShardsRequest(Message):
    """Ledger rows of finished records that are on this host's disk."""

    identity: RunIdentity
    after: int = 0
    limit: int | None = None
    """At most so many rows; None for all."""
    freed: bool = False
    """Also the records that were delivered and deleted here."""


class ShardsResult(Message):
    """What was streamed, and whether more can come."""

    rows: int
    cursor: int
    counts: Counts
    status: ExtractorStatus


class ExtractRequest(Message):
    """Start a run's extractor: detached by `run`, or in the foreground of this very process by `assignment`."""

    run: str = ""
    identity: RunIdentity | None = None
    """Which run the laptop means by that name; refused if this host holds another one. None for `assignment`."""
    assignment: str = ""
    """An assignment folder anywhere on this host, for launchers that keep the process themselves."""
    epoch: int | None = None
    """The newest epoch that the laptop knows; a host that only has an older one starts nothing."""
    then_stop: bool | None = None
    """Overrides the assignment's value."""


class RunRequest(Message):
    """Ask about one run, or about the newest one where no name is given (a host without any answers `run` "")."""

    run: str = ""


class RunStatus(Message):
    """A run on a host: its ledger, its extractor's last word, and whether that extractor lives."""

    run: str
    alive: bool
    """Whether an extractor's process holds the run."""
    word: str = ""
    """How the run stands in one or two words, looked at now: `running`, `waiting`, `draining 12`, `paused`, `stopped`,
    `complete`, `failed`, `silent for 40 s`."""
    state: ExtractorState
    host: str = ""
    records_flagged: int = 0
    parity_checked: int = 0
    """Records whose final slot agreed with the server's own logprobs, in all sessions."""
    causes: dict[str, int] = Field(default_factory=dict)
    """Causes of the quarantined records, with how often each occurs in the ledger."""
    free_bytes: int = 0
    """On the shards' file system."""
    in_flight_bytes: int = 0
    """Dumps that lie in the RAM disk."""
    prefill_wait_seconds: float = 0.0
    """Time that the servers' forward passes waited for capture: dump directory or staging memory full."""


class RunsRequest(Message):
    """Which runs this host has a folder of; read-only."""

    run: str = ""
    """This one alone; "" for all."""


class HeldRun(Message):
    """A run as this host knows it."""

    name: str
    assignment: Assignment | None = None
    """The newest; None if the folder does not say which run it is."""
    problem: str = ""
    """Why there is no assignment."""
    counts: Counts = Field(default_factory=Counts)
    status: ExtractorStatus = "stopped"
    alive: bool = False
    has_plan: bool = False
    """Whether the whole plan lies here, for a laptop that has lost it."""
    changed_at: float = 0.0


class RunsResult(Message):
    """By name."""

    runs: list[HeldRun]


class PlanRequest(Message):
    """The newest plan of a run that lies on this host."""

    identity: RunIdentity


class PlanResult(Message):
    """A `plan.json` as a laptop wrote it."""

    content: str


class StandingRequest(Message):
    """How one run stands on this host; with no name, every run at work here, or else the newest one."""

    run: str = ""


class GpuUse(Message):
    """One GPU as the driver sees it now."""

    index: int
    used_bytes: int
    total_bytes: int


class Standing(Message):
    """What a host says of its runs; empty if it has not heard of the run that was named."""

    runs: list[RunStatus]
    others: list[str] = Field(default_factory=list)
    """If the run that was named is not here: the runs that are."""
    gpus: list[GpuUse] = Field(default_factory=list)
    """Empty if no driver answers."""


class RateRequest(Message):
    """Ask how fast this host extracts, by what it did."""


class Rate(Message):
    """Tokens a second of whole minutes at work, the median of them."""

    tokens_per_second: float = 0.0
    """0 if no run here worked long enough."""
    run: str = ""
    """The run that it was measured in."""
    minutes: int = 0


class FollowRequest(Message):
    """Stream a `RunStatus` item at once and every `every_seconds`, until no extractor of the run lives."""

    run: str
    every_seconds: float = 2.0


class FenceRequest(Message):
    """Take all records from a host: whatever it was given before `epoch` belongs to others now."""

    identity: RunIdentity
    epoch: int


class ControlRequest(Message):
    """Steer a running extractor; `pause` and `stop` let what is in flight finish."""

    run: str
    action: Literal["pause", "resume", "stop"]


class Control(Message):
    """`control.json`: the newest wish."""

    action: Literal["pause", "resume", "stop"]
    at: float


class IndicesRequest(Message):
    """Records of one run, by global index."""

    identity: RunIdentity
    epoch: int
    """Of the plan that gives these records to this host: refused if the host was given a newer one."""
    indices: list[int]


class ReopenRequest(Message):
    """Open quarantined records of one run again, so that the next session tries them anew."""

    identity: RunIdentity
    indices: list[int] = Field(default_factory=list)
    """These alone; none means all."""
    dry_run: bool = False


class ReopenResult(Message):
    """How many records that were, and why they had been quarantined, with how often each cause occurs."""

    records: int = 0
    causes: dict[str, int] = Field(default_factory=dict)


class Delivered(Message):
    """A record whose bytes are durable elsewhere; another record of the same index is not meant."""

    index: int
    xxh3: str


class FreedRequest(Message):
    """Records of one run that their host may delete."""

    identity: RunIdentity
    records: list[Delivered]


class IndicesResult(Message):
    """How many of the given records the request applied to, and bytes that came free by it."""

    records: int
    freed_bytes: int = 0
