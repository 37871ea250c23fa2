"""The option `--cluster` of several tasks: the same actions, done by a cluster's scheduler. Prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hosts.commands import clusters
from hosts.commands import status as standing
from hosts.commands.extract import Reopening, newest_run
from hosts.commands.jobs import HandedOver, JobBackend, cancel_job, job_rows, task_of
from hosts.console.extraction import any_failed, show_status
from hosts.console.live import DeadHosts, live_lines
from hosts.console.output import Output
from hosts.console.text import moment
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.inventory.clusters import AnyCluster
from hosts.tasks.session import chosen_run, finish, printing, the_inventory
from hosts.tasks.trailing import note_in_trail
from remote.shared.messages.jobs import JobRow, JobTold, SubmitResult
from remote.shared.words import counted

_JOB_COLUMNS = ("job", "state", "node", "running for", "reason", "expected start")
CLUSTER = "NAME of a cluster of the inventory, whose nodes do the work"
ONE_JOB = {
    "cluster": "NAME of a cluster that runs this as one job without GPUs, with paths of its shared file system",
    "detach": "with --cluster: return once the job is submitted",
    "dry_run": "with --cluster: print the job's script, and submit nothing",
}
OF_JOB = "with --cluster: NAME of one job of inv prepare, verify, export or compress"
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
    name: str,
    run: str,
    inventory: str | None,
    json: bool,
    others: Options,
    *,
    dataset: str,
    reopen: Reopening | None,
    dry_run: bool,
) -> None:
    """Submit a run's replicas; with `dry_run`, show what would be submitted and open nothing again."""
    with cluster_session(name, inventory, json, others) as (cluster, fleet, output):
        run = chosen_run(fleet, output, run)
        if dry_run:
            _show_script(output, clusters.preview(fleet, cluster, run))
            return
        with live_lines(output, fleet) as lines:
            source = Path(dataset) if dataset else None
            submitted = clusters.submit(fleet, cluster, run, dataset=source, reopen=reopen, on_progress=lines)
        if reopen is not None:
            output.note(f"{name}: {counted(submitted.reopened, 'quarantined record')} opened again.")
        _show_submitted(output, name, run, submitted.result)


def cluster_stop(
    name: str, run: str, inventory: str | None, json: bool, others: Options, *, dry_run: bool, job: str = ""
) -> None:
    """Cancel a run's own jobs, whose published chunks stay; or the named job that runs one verb."""
    with cluster_session(name, inventory, json, {**others, "run": run and job and run}) as (_, fleet, output):
        if job:
            ended = cancel_job(fleet, job, dry_run=dry_run)
            output.document({"cluster": name, "job": job, "jobs": ended})
        else:
            run = chosen_run(fleet, output, run)
            ended = clusters.cancel(fleet, run, dry_run=dry_run)
            output.document({"cluster": name, "run": run, "jobs": ended})
        verb, nothing = "would be cancelled" if dry_run else "cancelled", "this job" if job else "no job of this run"
        absent = f"nothing; {nothing} is {'not ' if job else ''}in the queue"
        output.line(f"{name}: {verb}: {', '.join(ended) or absent}")


def cluster_status(name: str, run: str, inventory: str | None, json: bool, others: Options, *, job: str = "") -> None:
    """Show the run's status and, below it, the scheduler's view of the run's jobs and of jobs with one verb each."""
    with cluster_session(name, inventory, json, {**others, "run": run and job and run}) as (_, fleet, output):
        if job:
            finish(_job_status(name, fleet, output, job))
            return
        with live_lines(output, fleet):
            single = job_rows(fleet)
            if single and not run and not _has_begun(fleet):
                output.document({"cluster": name, "jobs": [row.model_dump(mode="json") for row in single]})
                _show_jobs(output, name, single)
                return
            run = chosen_run(fleet, output, run)
            outcomes = standing.status(fleet, run)
            jobs = clusters.jobs(fleet, run) if all(outcome.ok for outcome in outcomes) else []
        show_status(output, outcomes)
        _show_jobs(output, name, jobs)
        if single:
            _show_jobs(output, name, single)
        finish(output.outcomes(outcomes, failed=any_failed))


def _has_begun(fleet: Fleet) -> bool:
    """Return whether the cluster knows the run that was planned last."""
    try:
        (outcome,) = standing.status(fleet, newest_run(fleet))
    except UsageError:
        return False
    return bool(outcome.result.standing.runs)


def _job_status(cluster: str, fleet: Fleet, output: Output, name: str) -> int:
    """Show one job; return the exit code of its verb, or 0 while the job waits or runs."""
    with live_lines(output, fleet):
        rows = job_rows(fleet, name)
    output.document({"cluster": cluster, "jobs": [row.model_dump(mode="json") for row in rows]})
    _show_jobs(output, cluster, rows)
    return max(row.code or 0 for row in rows)


@dataclass(frozen=True)
class Job:
    """The options of a verb that can run as one job of a cluster."""

    cluster: str
    detach: bool = False
    dry_run: bool = False

    @contextmanager
    def session(self, inventory: str | None, json: bool, others: Options) -> Iterator[tuple[Fleet, Output]]:
        """Yield a fleet of the cluster alone, on which the verb runs as a job, and the output."""
        with (
            cluster_session(self.cluster, inventory, json, others) as (_, fleet, output),
            self.of(fleet, output),
        ):
            yield fleet, output

    @contextmanager
    def of(self, fleet: Fleet, output: Output) -> Iterator[None]:
        """Have the fleet's cluster run the verb as a job; a command that does not wait for the job ends the block."""
        cluster, host = clusters.cluster_host(fleet.inventory, self.cluster)

        def begun(told: JobTold) -> None:
            output.note(f"{self.cluster}: {_begun(told)}")
            output.detached = f"the job {told.name} on {self.cluster}"

        login = fleet.backend(host)
        fleet.reached_by(
            host, JobBackend(login, task_of(cluster, host), follow=not self.detach, dry_run=self.dry_run, begun=begun)
        )
        try:
            yield
        except HandedOver as handed:
            self._show(output, handed.told)

    def _show(self, output: Output, told: JobTold) -> None:
        """Print the script, or that the job is submitted."""
        output.document({"cluster": self.cluster, **told.model_dump(mode="json", exclude={"value"})})
        if self.dry_run:
            output.line(told.script.rstrip())
            return
        output.line(f"{self.cluster}: {_begun(told)}")
        output.note(
            f"`inv status --cluster {self.cluster} --job {told.name}` shows the job. The same command without --detach "
            "waits for it and shows its outcome."
        )


def _begun(told: JobTold) -> str:
    """Return what became of a request for a job."""
    if told.ended_at:
        return f"the job {told.name} ended at {moment(told.ended_at)}, and this is its outcome"
    if told.earlier:
        return f"the job {told.name} is in the queue already, as job {told.job}"
    return f"{told.name} is submitted as job {told.job}"


@contextmanager
def job_or(
    otherwise: Callable[[str | None, str | None, str | None, bool], AbstractContextManager[tuple[Fleet, Output]]],
    job: Job,
    host: str | None,
    hosts: str | None,
    inventory: str | None,
    json: bool,
    **only_jobs: bool,
) -> Iterator[tuple[Fleet, Output]]:
    """Yield the fleet on which a verb runs: a cluster's job, or what `otherwise` (`session`, `places`) yields.

    Without a cluster, the options `only_jobs` are refused if they were given.
    """
    if job.cluster:
        with job.session(inventory, json, {"host": host, "hosts": hosts}) as both:
            yield both
        return
    refuse_without_cluster(json, **only_jobs)
    with otherwise(host, hosts, inventory, json) as both:
        yield both


def refuse_without_cluster(json: bool, **options: bool) -> None:
    """End with one sentence if an option was given that only a job has."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        with printing(json):
            raise UsageError(f"{given[0]} needs --cluster: only a cluster has jobs.", remedy="Add --cluster NAME.")


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
