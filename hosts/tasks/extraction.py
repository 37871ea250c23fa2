"""Tasks of a run: `extract` and `status`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NoReturn

from invoke.context import Context
from rich.live import Live
from rich.text import Text

from hosts.commands import extract as extraction
from hosts.commands import runs as taking
from hosts.commands import status as standing
from hosts.commands.runs import plan_for
from hosts.console.extraction import any_failed, show_preview, show_status
from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.console.runs import show_runs
from hosts.console.text import moment
from hosts.errors import UsageError, nearest
from hosts.fleet import Fleet, Outcome
from hosts.tasks.clusters import CLUSTER, OF_JOB, cluster_extract, cluster_status, cluster_stop, refuse_without_cluster
from hosts.tasks.moving import Movers
from hosts.tasks.notifying import NOTIFY
from hosts.tasks.session import DRY_RUN, JSON, TARGET, chosen_run, finish, indices, printing, roost_task, session
from hosts.tasks.working import WORK_OPTIONS, begin, delivered_to, refuse_other_task, steer, teller_of, wish_of

WATCH_SECONDS = 5.0
_RUN = {"run": "name of the run (default: the one planned last)"}


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    _RUN,
    NOTIFY,
    WORK_OPTIONS,
    to="folder that the run is pulled to; a lost host's records that are in this folder are not extracted again",
    dataset="the dataset's folder, if it is not where the plan says",
    cluster=CLUSTER,
    example="inv extract --hosts all --run kimi-1",
)
def extract(
    context: Context,
    run: str = "",
    host: str | None = None,
    hosts: str | None = None,
    detach: bool = False,
    pause: bool = False,
    resume: bool = False,
    stop: bool = False,
    retry_quarantined: bool = False,
    records: str = "",
    to: str = "",
    dataset: str = "",
    then: str = "",
    yes: bool = False,
    notify: bool = False,
    cluster: str = "",
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Extract a run's hidden states, detached on every host, and show progress; Ctrl-C ends only the display.

    Hosts of the plan that are not chosen count as lost: their share goes to the others, after you agree. Chosen hosts
    without a share get one, so `--hosts all` includes a lost host again.
    """
    if cluster:
        others: dict[str, object] = {
            "host": host, "hosts": hosts, "pause": pause, "resume": resume, "to": to, "then": then, "notify": notify,
        }  # fmt: skip
        with printing(json):
            wish_of(pause=False, resume=False, stop=stop, then="", retry_quarantined=retry_quarantined, records=records)
            again = extraction.Reopening(indices(records)) if retry_quarantined else None
        if stop:
            cluster_stop(cluster, run, inventory, json, others, dry_run=dry_run)
        else:
            cluster_extract(cluster, run, inventory, json, others, dataset=dataset, reopen=again, dry_run=dry_run)
        return
    with session(host, hosts, inventory, json) as (fleet, output):
        wish = wish_of(
            pause=pause, resume=resume, stop=stop, then=then, retry_quarantined=retry_quarantined, records=records
        )
        run = chosen_run(fleet, output, run)
        reopen = extraction.Reopening(indices(records)) if retry_quarantined else None
        source = Path(dataset) if dataset else None
        if wish and not dry_run:
            finish(steer(fleet, output, run, wish))
            return
        refuse_other_task(plan_for(fleet, run), "extract")
        if dry_run:
            preview = extraction.preview(fleet, run, delivered_to(fleet, run, to), reopen, source)
            finish(show_preview(output, preview, wish))
            return
        code = begin(
            fleet,
            output,
            run,
            what="extraction",
            detach=detach,
            yes=yes,
            teller=teller_of(fleet, output, run, notify),
            dataset=source,
            then_stop=True if then else None,
            delivered=delivered_to(fleet, run, to),
            reopen=reopen,
        )
        finish(code)


@roost_task(
    TARGET,
    JSON,
    take="name of a run whose newest plan this laptop takes from the hosts",
    example="inv runs --hosts all",
)
def runs(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    take: str = "",
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """List every run that the hosts hold or that was planned here: layers, state, records, bytes, hosts, times."""
    with session(host, hosts, inventory, json) as (fleet, output):
        if take:
            plan = taking.take(fleet, take)
            output.document({"run": plan.run, "epoch": plan.epoch, "path": str(taking.local_plan(fleet, take))})
            output.line(f"The plan of the run {plan.run!r}, epoch {plan.epoch}, is now on this laptop.")
            return
        with live_lines(output, fleet):
            outcomes = taking.held(fleet)
        listed = taking.listed(fleet, outcomes)
        show_runs(output, listed, outcomes)
        finish(output.outcomes(outcomes) if any(outcome.error for outcome in outcomes) and not json else 0)


@roost_task(
    TARGET,
    JSON,
    run="name of the run (default: every run at work, or else each host's newest)",
    watch="refresh the table in place until Ctrl-C",
    cluster=CLUSTER,
    job=OF_JOB,
    example="inv status --hosts all --run kimi-1",
)
def status(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    run: str = "",
    watch: bool = False,
    cluster: str = "",
    job: str = "",
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show the state of runs and servers on every host; exit code 1 if a host, a server or a record failed."""
    if cluster:
        cluster_status(cluster, run, inventory, json, {"host": host, "hosts": hosts, "watch": watch}, job=job)
        return
    refuse_without_cluster(json, job=bool(job))
    with session(host, hosts, inventory, json) as (fleet, output):
        if watch:
            _watch(fleet, output, run)
        with live_lines(output, fleet):
            outcomes = standing.status(fleet, run)
        _refuse_unheard(run, outcomes)
        show_status(output, outcomes)
        finish(output.outcomes(outcomes, failed=any_failed))


def _refuse_unheard(run: str, outcomes: list[Outcome[standing.HostStatus]]) -> None:
    """Raise UsageError if every host answered and none knows the named run."""
    told = [outcome.value.standing for outcome in outcomes if outcome.value is not None]
    if run and len(told) == len(outcomes) and not any(one.runs for one in told):
        others = sorted({name for one in told for name in one.others})
        remedy = nearest(run, others) or f"Their runs: {', '.join(others) or 'none'}."
        raise UsageError(f"None of these hosts knows the run {run!r}.", remedy=remedy)


def _watch(fleet: Fleet, output: Output, run: str) -> NoReturn:
    """Draw the status in place every `WATCH_SECONDS` until Ctrl-C, and move work between the hosts meanwhile."""
    if not output.out.is_terminal:
        raise UsageError("--watch needs a terminal.", remedy="Leave it out, or use `watch inv status …`.")
    _refuse_unheard(run, standing.status(fleet, run))
    movers = Movers(fleet, output)
    with Live(console=output.out, auto_refresh=False, screen=True) as live:
        while True:
            outcomes = standing.status(fleet, run)
            with output.captured() as shown:
                show_status(output, outcomes, attached=True)
                movers.step(outcomes)
                output.outcomes(outcomes, failed=any_failed)
                output.note(f"{moment(time.time())}; refreshed every {WATCH_SECONDS:.0f} s, Ctrl-C leaves")
            live.update(Text.from_ansi(shown()), refresh=True)
            time.sleep(WATCH_SECONDS)
