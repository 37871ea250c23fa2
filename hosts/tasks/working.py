"""Shared by the tasks of detached work: asking before a share is given away, starting, following, steering."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from hosts.commands import extract as extraction
from hosts.commands.runs import plan_for
from hosts.console.extraction import end_line, failure, has_failed, live_line, show_start, start_line
from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.errors import UsageError
from hosts.fleet import Fleet, Outcome
from hosts.plan.plan import Plan
from hosts.tasks.moving import moving
from hosts.tasks.notifying import Teller, keep_watch
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.extract import RunStatus
from remote.shared.words import counted

WORK_OPTIONS = {
    "detach": "return once every host has started",
    "pause": "begin no further records until --resume",
    "resume": "continue after --pause",
    "stop": "finish the records in flight and end; the same command continues later",
    "retry_quarantined": "open quarantined records again, then start or continue; use it once their cause is repaired",
    "records": "with --retry-quarantined: only the records with these indices, as in 0,17,203",
    "yes": "give the shares of hosts that are not chosen to the others, without asking",
    "then": "'stop': stop a host's servers once its share is complete",
}


def wish_of(*, pause: bool, resume: bool, stop: bool, then: str, retry_quarantined: bool, records: str) -> str:
    """`pause`, `resume`, `stop` or ""; raises UsageError if the options contradict each other."""
    wishes = [name for name, wish in (("pause", pause), ("resume", resume), ("stop", stop)) if wish]
    if len(wishes) > 1 or then not in ("", "stop"):
        raise UsageError("Give only one of --pause, --resume and --stop; --then can only be 'stop'.")
    if retry_quarantined and wishes:
        raise UsageError(f"--retry-quarantined starts or continues the work; leave out --{wishes[0]}.")
    if records and not retry_quarantined:
        raise UsageError("--records needs --retry-quarantined, which opens those records again; give both.")
    return "".join(wishes)


def refuse_other_task(plan: Plan, task: str) -> None:
    """Raise UsageError if the run is made by another task than the one that was typed."""
    if plan.task != task:
        raise UsageError(
            f"The records of the run {plan.run!r} are made by inv {plan.task}, not by inv {task}.",
            remedy=f"Type inv {plan.task} --run {plan.run}, or name another run.",
        )


def teller_of(fleet: Fleet, output: Output, run: str, notify: bool) -> Teller | None:
    """Return the sender of a notification for each host's end, or None without --notify."""
    return Teller(fleet, output, f"run {run}", "finished", end_line, has_failed) if notify else None


def steer(fleet: Fleet, output: Output, run: str, wish: str) -> int:
    """Ask every host to `pause`, `resume` or `stop`; return the exit code."""
    return output.outcomes(extraction.steer(fleet, run, wish), end_line)


def begin(
    fleet: Fleet,
    output: Output,
    run: str,
    *,
    what: str,
    detach: bool,
    yes: bool,
    teller: Teller | None,
    dataset: Path | None,
    then_stop: bool | None,
    delivered: Ranges | None,
    reopen: extraction.Reopening | None,
    at_end: Callable[[], None] = lambda: None,
) -> int:
    """Start the run on every host, and follow it unless told to `detach`; return the exit code.

    `at_end` is called when every host has ended, and prints the results.
    """
    _agree_to_give_away(fleet, output, run, yes=yes)
    with live_lines(output, fleet) as lines:
        keep_watch(fleet, output, teller, run)
        started = extraction.start(
            fleet,
            run,
            dataset=dataset,
            then_stop=then_stop,
            delivered=delivered,
            reopen=reopen,
            on_progress=lines,
        )
    show_start(output, started)
    working = [outcome.host.name for outcome in started.outcomes if outcome.ok]
    output.detached = f"the {what} of run {run!r} on {', '.join(working)}" if working else ""
    if detach or not working:
        return output.outcomes(started.outcomes, start_line)
    return _follow(fleet, output, run, started, teller, at_end)


def _agree_to_give_away(fleet: Fleet, output: Output, run: str, *, yes: bool) -> None:
    """Ask before hosts of the plan lose their share; raises UsageError if nobody can be asked."""
    losing = extraction.counted_on(fleet, run)
    if yes or not losing:
        return
    listed = ", ".join(f"{host} ({counted(records, 'record')})" for host, records in losing.items())
    if output.as_json or not sys.stdin.isatty():
        raise UsageError(
            f"The run {run!r} has {listed}, not chosen here; their undelivered records would go to the others.",
            remedy="Use --hosts all to keep them, or --yes to give their share away.",
        )
    output.note(f"The run {run!r} has {listed}; their undelivered records would go to the hosts chosen here.")
    if input("Give their share away? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise UsageError("Nothing was changed.", remedy="Use --hosts all to keep every host in the run.")


def _follow(
    fleet: Fleet,
    output: Output,
    run: str,
    started: extraction.Started,
    teller: Teller | None,
    at_end: Callable[[], None],
) -> int:
    working = [outcome.host for outcome in started.outcomes if outcome.ok]
    chosen, identity = fleet.narrowed(working), started.plan.identity
    with live_lines(output, fleet, failure) as lines, moving(chosen, output, identity) as attendant:
        chosen.watcher = fleet.watcher
        ended = extraction.follow(chosen, run, lambda host, told: lines(host, live_line(told)), attendant)
    failed = [Outcome[RunStatus](outcome.host, error=outcome.error) for outcome in started.outcomes if not outcome.ok]
    if teller is not None:
        for outcome in [*ended, *failed]:
            teller(outcome)
    at_end()
    return output.outcomes([*ended, *failed], end_line, has_failed)


def delivered_to(fleet: Fleet, run: str, to: str) -> Ranges | None:
    """Return the run's records in the folder `to`; None if no folder was named."""
    return extraction.delivered_to(Path(to), plan_for(fleet, run).identity) if to else None
