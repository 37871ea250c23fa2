"""Tasks that start and stop servers: `serve`, `restart`, `stop`, `free`, `clean`."""

from __future__ import annotations

from functools import partial

from invoke.context import Context

from hosts.commands import clean as cleaning
from hosts.commands import serve as serving
from hosts.commands import stop as stopping
from hosts.console.disk import clean_line, show_stored
from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.console.servers import (
    IN_THE_WAY,
    is_left,
    server_line,
    show_finding,
    show_plan,
    show_processes,
    stop_line,
)
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.tasks.notifying import NOTIFY, Teller
from hosts.tasks.session import DRY_RUN, JSON, TARGET, finish, roost_task, session

_WAIT = {"wait": "wait for another operator's command on a host instead of refusing"}
_MODE = {"mode": "mode of the inventory: extract (captures hidden states), serve, or one of yours"}
_ENDING = {
    "force": "also end what stands in the way and is not of this workdir: exactly what --dry-run lists",
    "grace": "seconds between SIGTERM and SIGKILL",
}


@roost_task(TARGET, JSON, DRY_RUN, _WAIT, _MODE, NOTIFY)
def serve(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    mode: str = "extract",
    notify: bool = False,
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Start the servers, detached, and wait until each has answered and captured rightly."""
    _serve(host, hosts, inventory, json, mode=mode, replace=False, notify=notify, dry_run=dry_run, wait=wait)


@roost_task(TARGET, JSON, DRY_RUN, _WAIT, _MODE, NOTIFY)
def restart(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    mode: str = "extract",
    notify: bool = False,
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Stop Roost's own servers and start them again, with the inventory as it is now."""
    _serve(host, hosts, inventory, json, mode=mode, replace=True, notify=notify, dry_run=dry_run, wait=wait)


@roost_task(TARGET, JSON, DRY_RUN, _WAIT, _ENDING, server="only this server (default: all of Roost's on the host)")
def stop(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    server: str = "",
    force: bool = False,
    grace: float = 30.0,
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Stop Roost's servers; who else holds their GPUs, port or dump directory is named, and ended only with --force."""
    with session(host, hosts, inventory, json) as (fleet, output):
        names = [server] if server else []
        _stop(fleet, output, names=names, everything=False, force=force, grace=grace, wait=wait, dry_run=dry_run)


@roost_task(TARGET, JSON, DRY_RUN, _WAIT, _ENDING)
def free(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    force: bool = False,
    grace: float = 30.0,
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Free the hosts for Roost: like stop, and any SGLang process and leftover shared memory counts."""
    with session(host, hosts, inventory, json) as (fleet, output):
        _stop(fleet, output, names=[], everything=True, force=force, grace=grace, wait=wait, dry_run=dry_run)


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    _WAIT,
    named="runs, payloads or servers (their old logs), separated by commas, whatever their age",
    older_than="days since the last change (what is named goes at any age)",
    force="also remove a named run that holds records which no pull has freed",
)
def clean(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    named: str = "",
    older_than: float = 30.0,
    force: bool = False,
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Free the hosts' disks of old runs, payloads and logs; what is used or not yet pulled stays."""
    with session(host, hosts, inventory, json) as (fleet, output):
        if not older_than >= 0:
            raise UsageError(f"--older-than is {older_than:g}; it is a number of days from 0 on.")
        with live_lines(output, fleet) as lines:
            outcomes = cleaning.clean(
                fleet,
                names=[part.strip() for part in named.split(",") if part.strip()],
                older_than_days=older_than,
                force=force,
                dry_run=dry_run,
                wait=wait,
                on_progress=lines,
            )
        details = partial(show_stored, output, outcomes)
        finish(output.outcomes(outcomes, partial(clean_line, dry_run=dry_run), details=details))


def _stop(
    fleet: Fleet,
    output: Output,
    *,
    names: list[str],
    everything: bool,
    force: bool,
    grace: float,
    wait: bool,
    dry_run: bool,
) -> None:
    if not grace >= 0:
        raise UsageError(f"--grace is {grace:g}; it is a number of seconds from 0 on.")
    with live_lines(output, fleet) as lines:
        outcomes = stopping.stop(
            fleet,
            names=names,
            everything=everything,
            force=force,
            dry_run=dry_run,
            grace_seconds=grace,
            wait=wait,
            on_progress=lines,
        )
    code = output.outcomes(
        outcomes,
        partial(stop_line, dry_run=dry_run, force=force),
        partial(is_left, force=force),
        amiss=IN_THE_WAY,
        details=partial(show_processes, output, outcomes, own=dry_run),
    )
    finish(code)


def _serve(
    host: str | None,
    hosts: str | None,
    inventory: str | None,
    json: bool,
    *,
    mode: str,
    replace: bool,
    notify: bool,
    dry_run: bool,
    wait: bool,
) -> None:
    with session(host, hosts, inventory, json) as (fleet, output):
        teller = Teller(fleet, output, f"servers ({mode})", "ready", server_line) if notify and not dry_run else None
        with live_lines(output, fleet) as lines:
            outcomes = serving.serve(
                fleet,
                mode=mode,
                replace=replace,
                dry_run=dry_run,
                wait=wait,
                on_progress=lines,
                on_outcome=teller,
                on_finding=partial(show_finding, output),
            )
        finish(output.outcomes(outcomes, server_line, details=partial(show_plan, output, outcomes)))
