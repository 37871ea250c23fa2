"""A run's jobs on a cluster: submitted, looked at and cancelled on the cluster's login host."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
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


class JobsRequest(Message):
    """Ask for the run's jobs as the scheduler sees them now; read-only."""

    identity: RunIdentity


class JobRow(Message):
    """One replica's job, or several jobs that wait as one row."""

    job: str
    state: str
    node: str = ""
    reason: str = ""
    starts_at: str = ""
    """When the scheduler expects the job to start, in the login host's time; "" if unknown."""
    seconds: str = ""
    """How long the job has run, as the scheduler writes it."""


class JobsResult(Message):
    """The run's jobs in the scheduler's order, without jobs that have ended."""

    jobs: list[JobRow]


class CancelRequest(Message):
    """Cancel this run's own jobs, and no others."""

    identity: RunIdentity
    dry_run: bool = False


class CancelResult(Message):
    """The jobs that were cancelled, or would be."""

    jobs: list[str]
