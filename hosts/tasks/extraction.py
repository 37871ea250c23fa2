"""Tasks of a run: `extract` and `status`."""

from __future__ import annotations

import sys
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
from hosts.console.extraction import (
    any_failed,
    end_line,
    failure,
    has_failed,
    live_line,
    show_preview,
    show_start,
    show_status,
    start_line,
)
from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.console.runs import show_runs
from hosts.console.text import moment
from hosts.errors import UsageError, nearest
from hosts.fleet import Fleet, Outcome
from hosts.tasks.moving import Movers, moving
from hosts.tasks.notifying import NOTIFY, Teller, keep_watch
from hosts.tasks.session import DRY_RUN, JSON, TARGET, chosen_run, finish, indices, roost_task, session
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.extract import RunStatus

WATCH_SECONDS = 5.0
_RUN = {"run": "name of the run (default: the one planned last)"}


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    _RUN,
    NOTIFY,
    detach="return once every host has started",
    pause="begin no further records until --resume",
    resume="continue after --pause",
    stop="finish the records in flight and end; a later inv extract continues",
    retry_quarantined="first open quarantined records again, after their cause was repaired",
    records="with --retry-quarantined: only the records with these indices, as in 0,17,203",
    to="folder that the run is pulled to; records of a lost host that it holds are not extracted again",
    dataset="the dataset's folder, if it is not where the plan says",
    yes="give away the shares of hosts that are not chosen, without asking",
    then="'stop': stop a host's servers once its share is complete",
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
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Extract a run's hidden states, detached on every host; shows progress, which Ctrl-C leaves without harm.

    Hosts of the plan that are not chosen count as lost: their share goes to the others, after you agree. Chosen hosts
    without a share get one, so `--hosts all` includes a lost host again.
    """
    with session(host, hosts, inventory, json) as (fleet, output):
        wishes = [name for name, wish in (("pause", pause), ("resume", resume), ("stop", stop)) if wish]
        if len(wishes) > 1 or then not in ("", "stop"):
            raise UsageError("Give only one of --pause, --resume and --stop; --then can only be 'stop'.")
        if retry_quarantined and wishes:
            raise UsageError(f"--retry-quarantined starts or continues the extraction; leave out --{wishes[0]}.")
        if records and not retry_quarantined:
            raise UsageError("--records needs --retry-quarantined, which opens those records again; give both.")
        run = chosen_run(fleet, output, run)
        reopen = extraction.Reopening(indices(records)) if retry_quarantined else None
        source = Path(dataset) if dataset else None
        if dry_run:
            preview = extraction.preview(fleet, run, _delivered(fleet, run, to), reopen, source)
            finish(show_preview(output, preview, "".join(wishes)))
            return
        teller = Teller(fleet, output, f"run {run}", "finished", end_line, has_failed) if notify else None
        if wishes:
            finish(output.outcomes(extraction.steer(fleet, run, wishes[0]), end_line))
            return
        _agree_to_give_away(fleet, output, run, yes=yes)
        with live_lines(output, fleet) as lines:
            keep_watch(fleet, output, teller, run)
            started = extraction.start(
                fleet,
                run,
                dataset=source,
                then_stop=True if then else None,
                delivered=_delivered(fleet, run, to),
                reopen=reopen,
                on_progress=lines,
            )
        show_start(output, started)
        working = [outcome.host.name for outcome in started.outcomes if outcome.ok]
        output.detached = f"the extraction of run {run!r} on {', '.join(working)}" if working else ""
        if detach or not any(outcome.ok for outcome in started.outcomes):
            finish(output.outcomes(started.outcomes, start_line))
        else:
            finish(_follow(fleet, output, run, started, teller))


def _delivered(fleet: Fleet, run: str, to: str) -> Ranges | None:
    """Return the run's records in the folder `to`; None if no folder was named."""
    return extraction.delivered_to(Path(to), plan_for(fleet, run).identity) if to else None


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
    example="inv status --hosts all --run kimi-1",
)
def status(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    run: str = "",
    watch: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show the state of runs and servers on every host; exit code 1 if a host, a server or a record failed."""
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


def _agree_to_give_away(fleet: Fleet, output: Output, run: str, *, yes: bool) -> None:
    """Ask before hosts of the plan lose their share; raises UsageError if nobody can be asked."""
    losing = extraction.counted_on(fleet, run)
    if yes or not losing:
        return
    listed = ", ".join(f"{host} ({records:,} records)" for host, records in losing.items())
    if output.as_json or not sys.stdin.isatty():
        raise UsageError(
            f"The run {run!r} has {listed}, not chosen here; their undelivered records would go to the others.",
            remedy="Use --hosts all to keep them, or --yes to give their share away.",
        )
    output.note(f"The run {run!r} has {listed}; their undelivered records would go to the hosts chosen here.")
    if input("Give their share away? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise UsageError("Nothing was changed.", remedy="Use --hosts all to keep every host in the run.")


def _follow(fleet: Fleet, output: Output, run: str, started: extraction.Started, teller: Teller | None) -> int:
    working = [outcome.host for outcome in started.outcomes if outcome.ok]
    chosen, identity = fleet.narrowed(working), started.plan.identity
    with live_lines(output, fleet, failure) as lines, moving(chosen, output, identity) as attendant:
        chosen.watcher = fleet.watcher
        ended = extraction.follow(chosen, run, lambda host, told: lines(host, live_line(told)), attendant)
    failed = [Outcome[RunStatus](outcome.host, error=outcome.error) for outcome in started.outcomes if not outcome.ok]
    if teller is not None:
        for outcome in [*ended, *failed]:
            teller(outcome)
    return output.outcomes([*ended, *failed], end_line, has_failed)
