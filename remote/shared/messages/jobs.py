"""A run's jobs on a cluster: submitted, looked at and cancelled on the cluster's login host."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.replica import ReplicaSpec
from remote.shared.messages.run import RunIdentity


class SlurmArray(Message):
    """What the array of a run's replicas asks Slurm for."""

    engine: Literal["slurm"] = "slurm"
    nodes: int = Field(ge=1)
    """Tasks of the array, one node each."""
    gpus_per_node: int = 0
    """0 asks for none."""
    options: dict[str, str] = Field(default_factory=dict)
    """Further options of sbatch by their long names; "" for one without a value."""
    signal_seconds: int = Field(default=300, ge=1)
    """So long before its time limit a replica is told to drain."""
    prolog: list[str] = Field(default_factory=list)
    """Lines of shell before the replica."""
    wrap: list[str] = Field(default_factory=list)
    """Words before the replica's command: a container's."""
    python: str = "python3"
    """On the nodes."""
    scratch: str = "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}"
    """A folder on the node's own disk, as the shell writes it."""


class RayPool(Message):
    """What the replicas of a run ask Ray for: one placement group of one node each."""

    engine: Literal["ray"] = "ray"
    address: str
    """Of Ray's job server, as the login host reaches it."""
    least: int = Field(ge=0)
    """Nodes that must be there when the run begins."""
    most: int = Field(ge=1)
    """Replicas at once; Ray's autoscaler sees as many placement groups as demand."""
    bundle: dict[str, float]
    """The resources of one placement group: `{"GPU": 8, "CPU": 1}`."""
    join_seconds: float = 900.0
    """So long the first node may take to come, if none has to be there when the run begins."""
    python: str = "python3"
    """In which SGLang is installed, on the nodes."""
    ray_python: str = "python3"
    """In which Ray is installed, on the head node."""
    scratch: str = "/tmp"  # noqa: S108
    """A folder on each node's own disk."""


Order = Annotated[SlurmArray | RayPool, Field(discriminator="engine")]
"""What the replicas of a run need, as their engine is asked for it."""


class LookRequest(Message):
    """Look at the Ray cluster at an address, as the login host reaches it; read-only."""

    address: str


class RayLook(Message):
    """What was seen of a Ray cluster."""

    version: str
    is_open: bool
    """Whether its job server answers a request without a token."""


class SubmitRequest(Message):
    """Share a run out, whose assignment lies here, and submit its replicas."""

    identity: RunIdentity
    spec: ReplicaSpec
    order: Order
    dry_run: bool = False


class SubmitResult(Message):
    """The job and what was, or would be, submitted."""

    script: str
    """As the engine takes it."""
    job: str = ""
    """Its number or name in the scheduler's queue; "" if nothing was submitted."""
    over: bool = False
    """Whether every chunk of the run was published before: nothing was submitted."""
    earlier: list[str] = Field(default_factory=list)
    """Jobs of this run that are in the queue already: nothing was submitted."""


class JobsRequest(Message):
    """The run's jobs as the scheduler sees them now; read-only."""

    identity: RunIdentity


class JobRow(Message):
    """One replica's job, or jobs that still wait together."""

    job: str
    state: str
    node: str = ""
    reason: str = ""
    starts_at: str = ""
    """When the scheduler expects it to start, in the login host's time; "" if it does not say."""
    seconds: str = ""
    """How long it has run, as the scheduler writes it."""


class JobsResult(Message):
    """In the scheduler's order; jobs that have ended are left out."""

    jobs: list[JobRow]


class CancelRequest(Message):
    """Cancel this run's own jobs, and no others."""

    identity: RunIdentity
    dry_run: bool = False


class CancelResult(Message):
    """The jobs that were cancelled, or would be."""

    jobs: list[str]
