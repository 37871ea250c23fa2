"""Output of `inv runs`: a table of all known runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hosts.commands.runs import ListedRun
from hosts.console.output import Output
from hosts.fleet import Outcome
from hosts.units import size
from remote.shared.messages.extract import RunsResult

COLUMNS = (
    "run",
    "dataset",
    "boundaries",
    "state",
    "records",
    "tokens",
    "bytes",
    "hosts",
    "planned by",
    "changed",
    "plan here",
)


def show_runs(output: Output, runs: Sequence[ListedRun], outcomes: Sequence[Outcome[RunsResult]]) -> None:
    """Print the table, then the hosts' folders that do not say which run they hold; or the JSON document."""
    output.document(
        {
            "runs": [run.model_dump(mode="json") for run in runs],
            "failed": {one.host.name: one.error.message for one in outcomes if one.error is not None},
        }
    )
    if runs:
        output.table(COLUMNS, [_row(run) for run in runs])
    else:
        output.line("There is no run yet, neither on these hosts nor planned on this laptop.")
    for outcome in outcomes:
        for held in outcome.value.runs if outcome.value is not None else ():
            if held.problem:
                output.note(f"{outcome.host.name}: {held.name}: {held.problem}")


def _row(run: ListedRun) -> tuple[object, ...]:
    return (
        run.name,
        run.identity.dataset[:8],
        ", ".join(str(boundary) for boundary in run.identity.boundaries) or "answers",
        run.state,
        f"{run.records_done:,} of {run.records:,}",
        f"{run.tokens_done:,}",
        size(run.bytes_done),
        ", ".join(run.hosts),
        run.planned_by,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.changed_at)) if run.changed_at else "",
        "yes" if run.planned_here else "no",
    )
