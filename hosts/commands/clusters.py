"""`--cluster`: submits, shows and cancels a run's replicas as jobs, on the cluster's login host. Runs on the laptop.

For planning, status and pulls, a cluster is one host: its login host, with the folder that it shares with the nodes.
Only the start of the work differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hosts.commands import extract as extraction
from hosts.commands.runs import plan_for
from hosts.errors import UsageError, nearest
from hosts.fleet import Fleet
from hosts.inventory.clusters import AnyCluster, Cluster, RayCluster, SlurmCluster
from hosts.inventory.model import Host, Inventory
from hosts.inventory.servers import server_specs
from hosts.plan.plan import Plan
from hosts.transport.backend import Backend
from remote.shared.messages.extract import ExtractorState, RunRequest, RunStatus
from remote.shared.messages.jobs import (
    CancelRequest,
    CancelResult,
    JobRow,
    JobsRequest,
    JobsResult,
    RayPool,
    SlurmArray,
    SubmitRequest,
    SubmitResult,
)
from remote.shared.messages.replica import ReplicaSpec

DEADLINE_SECONDS = 180.0
AHEAD = 2


@dataclass(frozen=True)
class Submitted:
    """The result of a submission."""

    plan: Plan
    result: SubmitResult
    reopened: int = 0
    """Quarantined records that are open again."""


def cluster_host(inventory: Inventory, name: str) -> tuple[AnyCluster, Host]:
    """Return the cluster of that name and its login host; raises UsageError if the inventory has no such cluster."""
    if name not in inventory.clusters:
        known = ", ".join(inventory.clusters) or "none"
        hint = nearest(name, inventory.clusters) or f"{inventory.path} has the clusters: {known}."
        raise UsageError(f"There is no cluster {name!r}.", remedy=hint)
    return inventory.clusters[name], inventory.cluster_hosts[name]


def submit(
    fleet: Fleet,
    cluster: AnyCluster,
    run: str,
    *,
    dataset: Path | None = None,
    reopen: extraction.Reopening | None = None,
    on_progress: extraction.OnProgress | None = None,
) -> Submitted:
    """Give the cluster its share of the run, and submit replicas; raises UsageError if the engine refuses them.

    `reopen` says which quarantined records are opened again before.
    """
    found: list[SubmitResult] = []

    def launch(backend: Backend, plan: Plan) -> ExtractorState:
        request = SubmitRequest(
            identity=plan.identity, spec=_spec(cluster, backend.host, plan), order=order_of(cluster, backend.host)
        )
        found.append(backend.call("submit", request, SubmitResult, deadline=DEADLINE_SECONDS))
        return backend.call("status", RunRequest(run=plan.run), RunStatus).state

    started = extraction.start(fleet, run, dataset=dataset, reopen=reopen, on_progress=on_progress, launch=launch)
    for outcome in started.outcomes:
        _ = outcome.result
    if not found:
        raise UsageError(
            f"The plan of {run!r} gives {cluster.name} no records.", remedy=f"Plan it with --host {cluster.name}."
        )
    return Submitted(started.plan, found[0], sum(one.records for one in started.reopened.values()))


def preview(fleet: Fleet, cluster: AnyCluster, run: str) -> SubmitResult:
    """Return the script that would be submitted; changes nothing."""
    plan, (host,) = plan_for(fleet, run), fleet.hosts
    request = SubmitRequest(
        identity=plan.identity, spec=_spec(cluster, host, plan), order=order_of(cluster, host), dry_run=True
    )
    return fleet.backend(host).call("submit", request, SubmitResult, deadline=DEADLINE_SECONDS)


def jobs(fleet: Fleet, run: str) -> list[JobRow]:
    """Return the run's jobs as the scheduler sees them."""
    (host,) = fleet.hosts
    request = JobsRequest(identity=plan_for(fleet, run).identity)
    return fleet.backend(host).call("jobs", request, JobsResult, deadline=DEADLINE_SECONDS).jobs


def cancel(fleet: Fleet, run: str, *, dry_run: bool) -> list[str]:
    """Cancel the run's own jobs, and return their names. Published chunks are kept."""
    (host,) = fleet.hosts
    request = CancelRequest(identity=plan_for(fleet, run).identity, dry_run=dry_run)
    return fleet.backend(host).call("cancel", request, CancelResult, deadline=DEADLINE_SECONDS).jobs


def order_of(cluster: AnyCluster, host: Host) -> SlurmArray | RayPool:
    """Return the cluster's order for its engine; raises UsageError for settings that a job cannot have."""
    extra = {} if cluster.scratch is None else {"scratch": cluster.scratch}
    if isinstance(cluster, RayCluster):
        return RayPool(
            address=cluster.address,
            least=cluster.nodes[0],
            most=cluster.nodes[1],
            bundle=cluster.bundle,
            join_seconds=cluster.join,
            python=host.python,
            ray_python=cluster.ray_python,
            **extra,
        )
    return SlurmArray(
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        options=cluster.options,
        signal_seconds=int(cluster.drain),
        prolog=cluster.prolog,
        wrap=wrap_of(cluster),
        python=host.python,
        **extra,
    )


def wrap_of(cluster: SlurmCluster, *, gpus: bool = True) -> list[str]:
    """Return the words before a command that runs it in the cluster's container; [] without a container."""
    if cluster.container is None:
        return []
    image, shared = cluster.container.image, cluster.workdir
    if cluster.container.kind == "apptainer":
        return ["apptainer", "exec", *(["--nv"] if gpus else []), "--bind", shared, image]
    return ["srun", "--ntasks=1", f"--container-image={image}", f"--container-mounts={shared}:{shared}"]


def _spec(cluster: Cluster, host: Host, plan: Plan) -> ReplicaSpec:
    if host.secrets and cluster.serve_with:
        raise UsageError(
            f"The cluster {cluster.name} has `secrets`, but also `serve_with`, whose command would not get them.",
            remedy="Leave out one of the two; the command can read a file of your own on the nodes.",
        )
    if any(entry.nodes for entry in host.servers):
        raise UsageError(f"The cluster {cluster.name} has servers that span nodes, which replicas cannot start yet.")
    return ReplicaSpec(
        epoch=plan.epoch,
        chunk_tokens=cluster.chunk_tokens,
        servers=[] if cluster.serve_with else server_specs(host, "extract"),
        serve_with=cluster.serve_with,
        lease_seconds=cluster.lease,
        ahead=AHEAD,
    )
