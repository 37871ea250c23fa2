"""A run's jobs on a cluster: submitted, looked at and cancelled on the cluster's login host."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from remote.shared.messages.envelope import Call, Message
from remote.shared.messages.replica import ReplicaSpec
from remote.shared.messages.run import RunIdentity


class SlurmArray(Message):
    """The Slurm array of a run's replicas."""

    engine: Literal["slurm"] = "slurm"
    nodes: int = Field(ge=1)
    """Number of tasks in the array; each task has one node."""
    gpus_per_node: int = 0
    """GPUs of a node; 0 requests none."""
    options: dict[str, str] = Field(default_factory=dict)
    """Further options of sbatch by their long names; "" for an option without a value."""
    signal_seconds: int = Field(default=300, ge=1)
    """Seconds before its time limit at which a replica is told to drain."""
    prolog: list[str] = Field(default_factory=list)
    """Lines of shell that run before the replica."""
    wrap: list[str] = Field(default_factory=list)
    """Words before the replica's command, such as those of a container."""
    python: str = "python3"
    """The Python on the nodes in which SGLang is installed."""
    scratch: str = "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}"
    """A folder on the node's own disk; may contain shell variables."""


class RayPool(Message):
    """The resources of a run's replicas in Ray: for each replica, a placement group on one node."""

    engine: Literal["ray"] = "ray"
    address: str
    """The address of Ray's job server, as the login host reaches it."""
    least: int = Field(ge=0)
    """Number of nodes that must be present when the run begins."""
    most: int = Field(ge=1)
    """The largest number of replicas at once; Ray's autoscaler sees this many placement groups as demand."""
    bundle: dict[str, float]
    """The resources of one placement group: `{"GPU": 8, "CPU": 1}`."""
    join_seconds: float = 900.0
    """Seconds to wait for the first node, if no node has to be present when the run begins."""
    python: str = "python3"
    """The Python on the nodes in which SGLang is installed."""
    ray_python: str = "python3"
    """The Python on the head node in which Ray is installed."""
    scratch: str = "/tmp"  # noqa: S108
    """A folder on each node's own disk."""


Order = Annotated[SlurmArray | RayPool, Field(discriminator="engine")]
"""The order for a run's replicas, in the form of their engine."""


class LookRequest(Message):
    """Read the state of the Ray cluster at an address, as the login host reaches it; changes nothing."""

    address: str


class RayLook(Message):
    """The state of a Ray cluster."""

    version: str
    is_open: bool
    """Whether its job server answers a request without a token."""


class SubmitRequest(Message):
    """Cut a run, whose assignment is on this host, into chunks, and submit its replicas."""

    identity: RunIdentity
    spec: ReplicaSpec
    order: Order
    dry_run: bool = False


class SubmitResult(Message):
    """The job and what was, or would be, submitted."""

    script: str
    """The script or request for the engine."""
    job: str = ""
    """The job's number or name in the scheduler's queue; "" if nothing was submitted."""
    over: bool = False
    """Whether every chunk of the run was published before: nothing was submitted."""
    earlier: list[str] = Field(default_factory=list)
    """Jobs of this run that are in the queue already: nothing was submitted."""


class SlurmTask(Message):
    """A Slurm job of one task without GPUs, which runs one verb."""

    engine: Literal["slurm"] = "slurm"
    options: dict[str, str] = Field(default_factory=dict)
    """Options of sbatch by their long names; "" for an option without a value."""
    prolog: list[str] = Field(default_factory=list)
    """Lines of shell that run before the verb."""
    wrap: list[str] = Field(default_factory=list)
    """Words before the verb's command, such as those of a container."""
    python: str = "python3"
    """The Python on the nodes that runs the verb."""


JobVerb = Literal["prepare", "verify", "export", "compress"]
"""The verbs that can run as a job of their own."""


class JobRequest(Message):
    """Run one verb as a job of its own, or follow the job that runs this very request already."""

    verb: JobVerb
    request: dict[str, Any]
    order: SlurmTask
    follow: bool = True
    """Stream the job's progress, and answer with its outcome; without this, answer once the job is submitted."""
    dry_run: bool = False


class JobTask(Message):
    """What the login host leaves for the job's node."""

    call: Call
    seen: list[str] = Field(default_factory=list)
    """Paths that are there on the login host."""
    mark: str = ""
    """A file in the folder that the verb writes to, by which the node can tell that it sees this very folder."""
    run: str = ""
    """The folder of the run whose shards the verb reads; "" for none."""


class JobTold(Message):
    """A job with one verb."""

    name: str
    """The verb and a digest of its request: the same request has the same name."""
    script: str
    job: str = ""
    """The job's number in the scheduler's queue; "" if nothing was submitted."""
    earlier: bool = False
    """Whether the job was submitted by an earlier command."""
    ended_at: float = 0.0
    """If the job had ended before this request, but nobody has seen its outcome: when, in Unix time."""
    value: dict[str, Any] | None = None
    """The verb's result; None without `follow`."""


class JobsRequest(Message):
    """Ask for the jobs of a run, of one verb, or of all verbs, as the scheduler sees them now."""

    identity: RunIdentity | None = None
    """The run whose replicas are listed; None lists the jobs with one verb."""
    name: str = ""
    """Only the job of this name, whether or not it has ended."""


class JobRow(Message):
    """One replica's job, or several jobs that wait as one row; or the job of one verb."""

    job: str
    state: str
    node: str = ""
    reason: str = ""
    starts_at: str = ""
    """When the scheduler expects the job to start, in the login host's time; "" if unknown."""
    seconds: str = ""
    """How long the job has run, as the scheduler writes it."""
    code: int | None = None
    """For the job of one verb that has ended: the verb's exit code."""


class JobsResult(Message):
    """The run's jobs in the scheduler's order, without jobs that have ended."""

    jobs: list[JobRow]


class CancelRequest(Message):
    """Cancel this run's own jobs, or the job of one verb, and no others."""

    identity: RunIdentity | None = None
    name: str = ""
    """The name of the job with one verb, if no run is given."""
    dry_run: bool = False


class CancelResult(Message):
    """The jobs that were cancelled, or would be."""

    jobs: list[str]
