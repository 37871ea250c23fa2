"""Output of `--cluster`: the script, the submission, and the scheduler's view of a run's jobs."""

from __future__ import annotations

from collections.abc import Sequence

from hosts.console.output import Output
from remote.shared.messages.jobs import JobRow, SubmitResult

COLUMNS = ("job", "state", "node", "running for", "reason", "expected start")


def show_submitted(output: Output, cluster: str, run: str, result: SubmitResult) -> None:
    """Say which job was submitted, or which ones are in the queue already."""
    output.document({"cluster": cluster, "run": run, **result.model_dump(mode="json")})
    if result.over:
        output.line(f"{cluster}: every record of the run {run!r} is done; nothing was submitted.")
    elif result.earlier:
        output.line(f"{cluster}: the run {run!r} is in the queue already: {', '.join(result.earlier)}.")
    else:
        output.line(f"{cluster}: submitted as job {result.job}; `inv status --cluster {cluster} --run {run}` shows it.")


def show_script(output: Output, result: SubmitResult) -> None:
    """Print the script that would be submitted."""
    output.document(result.model_dump(mode="json"))
    output.line(result.script.rstrip())


def show_jobs(output: Output, cluster: str, jobs: Sequence[JobRow]) -> None:
    """Print the scheduler's view, or that there is nothing in its queue."""
    if not jobs:
        output.line(f"{cluster}: no job of this run is in the queue.")
        return
    rows = [(job.job, job.state, job.node, job.seconds, job.reason, job.starts_at) for job in jobs]
    output.table(COLUMNS, rows, title=f"jobs on {cluster}", drop=("expected start", "running for"))
