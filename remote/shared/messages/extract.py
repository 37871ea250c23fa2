"""A run's work: the assignment that a host gets, and the reports that the host gives."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.server import ProcessRef

_CONTEXT_RESERVED = 7
"""Tokens that SGLang's scheduler reserves: 0.5.23 accepts 4,089 of 4,096 tokens and refuses 4,090."""


def longest_record(context_length: int) -> int:
    """Return the length of the longest record that a server with this context accepts."""
    return context_length - _CONTEXT_RESERVED


Task = Literal["extract", "answer"]
"""The tasks that make a run's records on the hosts, detached."""


class Assignment(Message):
    """`assignment.json`: one host's records of one epoch.

    `tokens.safetensors` lies beside it and holds `index` int64 [N] (global indices), `offset` int64 [N+1] and
    `token_ids` int32 [offset[-1]].
    """

    identity: RunIdentity
    host: str
    epoch: int
    ranges: list[tuple[int, int]]
    """The global indices as sorted, disjoint, half-open ranges."""
    records: int
    tokens: int
    plan: str = ""
    """Digest of the plan that made this share; "" if another launcher made the share, or if it was taken away."""
    planned_by: str = ""
    """The person who planned, as `user@laptop`."""
    planned_at: float = 0.0
    expected_tokens: int = 0
    """For prompts: the tokens that their records are expected to have in the end; 0 for records, whose tokens are
    known.
    """
    concurrency: int | None = None
    """Only for answers: requests in flight on each server; None means as many as the server says that it runs at once.
    """
    server_names: list[str] = Field(default_factory=lambda: ["main"])
    """The servers of this host that get the requests."""
    in_flight_tokens: int = 131_072
    parity_rate: float = 0.01
    """The share of records whose final slot is checked against the server's own input logprobs. At least 8 records of
    every host are checked, unless the share is 0."""
    min_free_bytes: int = 20 << 30
    """Begin no record while the shards' file system has less free space than this."""
    max_consecutive_failures: int = 20
    workers: int = 8
    """The number of collector threads, which check, hash and store: 6 GB/s on 16 cores (`benchmarks/collector.py`)."""
    vocab_size: int
    context_length: int
    then_stop: bool = False
    """Stop the servers once the run is complete."""
    store: Literal["plain", "compressed"] = "plain"
    """How shards are stored on this host's disk. Digests and sizes are always those of the plain bytes."""
    max_attempts: int = 3
    """A record is quarantined with its last cause after this many attempts."""
    request_timeout_seconds: float = 600.0
    """How long one prefill may take, and after it the dump; then the request is aborted and tried again."""
    server_wait_seconds: float = 1800.0
    """How long a run waits for a server that is not ready, for example during a restart, before it fails."""

    @property
    def run(self) -> str:
        """The run's name."""
        return self.identity.name

    @property
    def task(self) -> Task:
        """The task that makes records of this kind."""
        return "extract" if self.identity.answers is None else "answer"


ExtractorStatus = Literal["running", "paused", "waiting", "complete", "stopped", "failed"]


class Counts(Message):
    """The records of a run on a host, counted from its ledger."""

    assigned: int = 0
    done: int = 0
    quarantined: int = 0
    freed: int = 0
    """Records that were delivered and then deleted on this host."""
    beyond: int = 0
    """Records done or freed here under an earlier epoch and no longer in this host's share; not counted above."""
    tokens_assigned: int = 0
    tokens_done: int = 0
    tokens_quarantined: int = 0
    bytes_done: int = 0

    @property
    def tokens_open(self) -> int:
        """The tokens that this host still has to do."""
        return max(0, self.tokens_assigned - self.tokens_done - self.tokens_quarantined)


class ExtractorState(Message):
    """`runs/<run>/state.json`, which the extractor rewrites about once a second."""

    run: str
    epoch: int
    task: Task = "extract"
    status: ExtractorStatus
    cause: str = ""
    process: ProcessRef | None = None
    counts: Counts = Field(default_factory=Counts)
    tokens_per_second: float = 0.0
    """The rate over the last minute."""
    backpressure_seconds: float = 0.0
    """Time in which uncollected dumps kept a record from being sent."""
    waited: dict[str, float] = Field(default_factory=dict)
    """Seconds of this session in which no record was sent, by cause: `paused`, `disk`, `server`, `ramdisk`."""
    in_flight: int = 0
    """Records that were sent and have not ended."""
    retries: int = 0
    quarantine_causes: dict[str, int] = Field(default_factory=dict)
    """How many records this session quarantined for each cause."""
    flagged: int = 0
    """Records that this session kept although the norm of a slot left the run's usual band."""
    parity_checked: int = 0
    """Records of this session whose final slot agreed with the server's own logprobs."""
    canaries_passed: int = 0
    """Canaries of this session that were captured correctly while the servers were busy."""
    parity_excess: float = 0.0
    """The largest difference from the server's logprobs, relative to what rounding explains."""
    started_at: float = 0.0
    updated_at: float = 0.0


class ShardRow(Message):
    """The ledger row of a record that may be pulled: it is complete, checked and on this host's disk."""

    index: int
    rows: int
    size_bytes: int
    xxh3: str
    """The xxh3-128 of the shard's uncompressed bytes, 32 hex digits."""
    epoch: int
    stored: Literal["plain", "compressed"] = "plain"


class ShardBatch(Message):
    """One streamed item of the verb `shards`: rows in the order in which the records were finished."""

    rows: list[ShardRow]
    cursor: int
    """Pass this as `after` to get only newer rows."""


class ShardsRequest(Message):
    """Ask for the ledger rows of finished records on this host's disk."""

    identity: RunIdentity
    after: int = 0
    limit: int | None = None
    """The largest number of rows; None for all."""
    freed: bool = False
    """Also return records that were delivered and deleted here."""


class ShardsResult(Message):
    """The end of the stream, and whether more rows can come later."""

    rows: int
    cursor: int
    counts: Counts
    status: ExtractorStatus


class ExtractRequest(Message):
    """Start a run's extractor: detached if `run` is given, or in this process if `assignment` is given."""

    run: str = ""
    identity: RunIdentity | None = None
    """The identity of the named run; refused if this host has another run of that name. None with `assignment`."""
    assignment: str = ""
    """An assignment folder anywhere on this host, for launchers that manage the process themselves."""
    epoch: int | None = None
    """The newest epoch that the laptop knows; a host with only an older epoch starts nothing."""
    then_stop: bool | None = None
    """Overrides the value in the assignment."""


class RunRequest(Message):
    """Ask about one run, or about the newest run if no name is given. A host without runs answers with `run` ""."""

    run: str = ""


class Spare(Message):
    """How many further records of a run a host could do."""

    takes: bool = False
    """Whether the host could begin further records now: a server is ready, and the run is not paused or stopped."""
    room_tokens: int = 0
    """Tokens for which the disk has room, in addition to the host's open records."""
    longest: int = 0
    """Tokens of the longest record that the host's servers accept."""


class RunStatus(Message):
    """A run on a host: its ledger, its extractor's last state, and whether that extractor lives."""

    run: str
    alive: bool
    """Whether an extractor's process holds the run's lock."""
    word: str = ""
    """The run's status at this moment in one or two words: `running`, `waiting`, `draining 12`, `paused`, `stopped`,
    `complete`, `failed`, `silent for 40 s`."""
    state: ExtractorState
    task: Task = "extract"
    """The task that makes records of this kind."""
    overruled: str = ""
    """The other operator's request that this request replaced: who requested what, and when."""
    host: str = ""
    records_flagged: int = 0
    parity_checked: int = 0
    """Records of all sessions whose final slot agreed with the server's own logprobs."""
    causes: dict[str, int] = Field(default_factory=dict)
    """How many records the ledger has quarantined for each cause."""
    free_bytes: int = 0
    """Free space on the shards' file system."""
    spare: Spare = Field(default_factory=Spare)
    in_flight_bytes: int = 0
    """Bytes of dumps in the RAM disk."""
    prefill_wait_seconds: float = 0.0
    """Time that the servers' forward passes waited for capture: the dump directory or the staging memory was full."""


class RunsRequest(Message):
    """Ask for the runs of which this host has a folder; read-only."""

    run: str = ""
    """Only this run; "" for all."""


class HeldRun(Message):
    """A run of which this host has a folder."""

    name: str
    assignment: Assignment | None = None
    """The newest assignment; None if the folder does not say which run it belongs to."""
    problem: str = ""
    """Why there is no assignment; "" if there is one."""
    counts: Counts = Field(default_factory=Counts)
    status: ExtractorStatus = "stopped"
    alive: bool = False
    has_plan: bool = False
    """Whether this host has the whole plan, for a laptop that lost it."""
    changed_at: float = 0.0


class RunsResult(Message):
    """The runs, sorted by name."""

    runs: list[HeldRun]


class PlanRequest(Message):
    """Ask for this host's newest plan of a run."""

    identity: RunIdentity


class PlanResult(Message):
    """The content of a `plan.json`, as a laptop wrote it."""

    content: str


class StandingRequest(Message):
    """Ask about one run on this host; without a name, about every working run, or else about the newest run."""

    run: str = ""


class GpuUse(Message):
    """One GPU as the driver sees it at this moment."""

    index: int
    used_bytes: int
    total_bytes: int


class Standing(Message):
    """A host's answer about its runs; empty if it does not know the named run."""

    runs: list[RunStatus]
    others: list[str] = Field(default_factory=list)
    """The runs on this host, if the named run is not among them."""
    gpus: list[GpuUse] = Field(default_factory=list)
    """The GPUs; empty if no driver answers."""
    worked_seconds: dict[str, float] = Field(default_factory=dict)
    """Seconds for which each of these runs has worked here, over all its sessions, by its history."""


class RateRequest(Message):
    """Ask for this host's speed in extraction, or in answering, so far."""

    task: Task = "extract"


class Rate(Message):
    """The median of the tokens per second over whole minutes of work."""

    tokens_per_second: float = 0.0
    """The rate; 0 if no run on this host worked long enough."""
    run: str = ""
    """The run in which the rate was measured."""
    minutes: int = 0


class FollowRequest(Message):
    """Stream a `RunStatus` at once and then every `every_seconds`, until no extractor of the run lives."""

    run: str
    every_seconds: float = 2.0


class FenceRequest(Message):
    """Take all records from a host: its shares from before `epoch` now belong to other hosts."""

    identity: RunIdentity
    epoch: int


class ControlRequest(Message):
    """Control a running extractor; with `pause` and `stop`, records in flight still finish."""

    run: str
    action: Literal["pause", "resume", "stop"]


class Control(Message):
    """`control.json`: the latest request of an operator."""

    action: Literal["pause", "resume", "stop"]
    at: float
    by: str = ""
    """The operator, as `user@laptop`."""


class IndicesRequest(Message):
    """Name records of one run by their global indices."""

    identity: RunIdentity
    epoch: int
    """The epoch of the plan that gives these records to this host; refused if the host has a newer epoch."""
    indices: list[int]


class ReopenRequest(Message):
    """Open quarantined records of one run again, so that the next session tries them again."""

    identity: RunIdentity
    indices: list[int] = Field(default_factory=list)
    """Only these records; if empty, all."""
    dry_run: bool = False


class ReopenResult(Message):
    """How many records were opened again, and how many of them had been quarantined for each cause."""

    records: int = 0
    causes: dict[str, int] = Field(default_factory=dict)


class Delivered(Message):
    """A record whose bytes are durable elsewhere; the digest distinguishes it from another version of the record."""

    index: int
    xxh3: str


class FreedRequest(Message):
    """Name records of one run that the host may delete."""

    identity: RunIdentity
    records: list[Delivered]


class IndicesResult(Message):
    """How many of the named records were changed, and the bytes that this freed."""

    records: int
    freed_bytes: int = 0
