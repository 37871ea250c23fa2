"""The option `--cluster` of several tasks: the same actions, done by a cluster's scheduler. Prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hosts.commands import clusters
from hosts.commands import status as standing
from hosts.console.extraction import any_failed, show_status
from hosts.console.live import DeadHosts, live_lines
from hosts.console.output import Output
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.inventory.clusters import AnyCluster
from hosts.tasks.session import chosen_run, finish, printing, the_inventory
from hosts.tasks.trailing import note_in_trail
from remote.shared.messages.jobs import JobRow, SubmitResult

_JOB_COLUMNS = ("job", "state", "node", "running for", "reason", "expected start")
CLUSTER = "NAME of a cluster of the inventory, whose nodes do the work"
Options = Mapping[str, object]
"""What was given for options that a task has for hosts alone, by their names."""


@contextmanager
def cluster_session(
    name: str, inventory: str | None, json: bool, others: Options
) -> Iterator[tuple[AnyCluster, Fleet, Output]]:
    """Yield a cluster, the fleet of its login host, and the output; a changing task's trail names the cluster.

    Raises UsageError if one of the `others` was given: they are options for hosts, which mean nothing for a cluster.
    """
    with printing(json) as output:
        given = [f"--{option.replace('_', '-')}" for option, value in others.items() if value]
        if given:
            raise UsageError(f"{', '.join(given)} cannot be combined with --cluster.", remedy="Leave out one of them.")
        loaded = the_inventory(output, inventory)
        cluster, host = clusters.cluster_host(loaded, name)
        note_in_trail(loaded.path, [name], output)
        fleet = Fleet(loaded, [host])
        fleet.watcher = DeadHosts(output)
        try:
            yield cluster, fleet, output
        finally:
            fleet.close()


def cluster_extract(
    name: str, run: str, inventory: str | None, json: bool, others: Options, *, dataset: str, dry_run: bool
) -> None:
    """Submit a run's replicas; with `dry_run`, show what would be submitted."""
    with cluster_session(name, inventory, json, others) as (cluster, fleet, output):
        run = chosen_run(fleet, output, run)
        if dry_run:
            _show_script(output, clusters.preview(fleet, cluster, run))
            return
        with live_lines(output, fleet) as lines:
            source = Path(dataset) if dataset else None
            submitted = clusters.submit(fleet, cluster, run, dataset=source, on_progress=lines)
        _show_submitted(output, name, run, submitted.result)


def cluster_stop(name: str, run: str, inventory: str | None, json: bool, others: Options, *, dry_run: bool) -> None:
    """Cancel a run's own jobs; what their replicas have published stays."""
    with cluster_session(name, inventory, json, others) as (_, fleet, output):
        run = chosen_run(fleet, output, run)
        ended = clusters.cancel(fleet, run, dry_run=dry_run)
        verb = "would be cancelled" if dry_run else "cancelled"
        output.document({"cluster": name, "run": run, "jobs": ended})
        output.line(f"{name}: {verb}: {', '.join(ended) or 'nothing; no job of this run is in the queue'}")


def cluster_status(name: str, run: str, inventory: str | None, json: bool, others: Options) -> None:
    """Show the run's status and, below it, the scheduler's view of the run's jobs."""
    with cluster_session(name, inventory, json, others) as (_, fleet, output):
        run = chosen_run(fleet, output, run)
        with live_lines(output, fleet):
            outcomes = standing.status(fleet, run)
            jobs = clusters.jobs(fleet, run) if all(outcome.ok for outcome in outcomes) else []
        show_status(output, outcomes)
        _show_jobs(output, name, jobs)
        finish(output.outcomes(outcomes, failed=any_failed))


def _show_submitted(output: Output, cluster: str, run: str, result: SubmitResult) -> None:
    """Print which job was submitted, or which jobs of the run are in the queue already."""
    output.document({"cluster": cluster, "run": run, **result.model_dump(mode="json")})
    if result.over:
        output.line(f"{cluster}: every record of the run {run!r} is done; nothing was submitted.")
    elif result.earlier:
        output.line(f"{cluster}: the run {run!r} is in the queue already: {', '.join(result.earlier)}.")
    else:
        output.line(f"{cluster}: submitted as job {result.job}; `inv status --cluster {cluster} --run {run}` shows it.")


def _show_script(output: Output, result: SubmitResult) -> None:
    """Print the script that would be submitted."""
    output.document(result.model_dump(mode="json"))
    output.line(result.script.rstrip())


def _show_jobs(output: Output, cluster: str, jobs: Sequence[JobRow]) -> None:
    """Print the scheduler's view, or that no job is in its queue."""
    if not jobs:
        output.line(f"{cluster}: no job of this run is in the queue.")
        return
    rows = [(job.job, job.state, job.node, job.seconds, job.reason, job.starts_at) for job in jobs]
    output.table(_JOB_COLUMNS, rows, title=f"jobs on {cluster}", drop=("expected start", "running for"))
