"""Tasks that start and stop servers: `serve`, `restart`, `stop`."""

from __future__ import annotations

from invoke.context import Context

from hosts.commands import serve as serving
from hosts.commands import stop as stopping
from hosts.console.live import live_lines
from hosts.console.servers import is_left, server_line, show_plan, show_processes, stop_line
from hosts.tasks.session import DRY_RUN, JSON, TARGET, finish, roost_task, session

_WAIT = {"wait": "wait for another operator's command on a host instead of refusing"}
_MODE = {"mode": "mode of the inventory: extract (captures hidden states), serve, or one of yours"}


@roost_task(TARGET, JSON, DRY_RUN, _WAIT, _MODE)
def serve(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    mode: str = "extract",
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Start the servers, detached, and wait until each has answered and captured rightly."""
    _serve(host, hosts, inventory, json, mode=mode, replace=False, dry_run=dry_run, wait=wait)


@roost_task(TARGET, JSON, DRY_RUN, _WAIT, _MODE)
def restart(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    mode: str = "extract",
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Stop Roost's own servers and start them again, with the inventory as it is now."""
    _serve(host, hosts, inventory, json, mode=mode, replace=True, dry_run=dry_run, wait=wait)


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    _WAIT,
    server="only this server (default: all of Roost's on the host)",
    force="also end what stands in the way and is not Roost's, as --dry-run lists it",
    grace="seconds between SIGTERM and SIGKILL",
)
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
    """Stop Roost's servers; what is not Roost's is named, and ended only with --force."""
    with session(host, hosts, inventory, json) as (fleet, output):
        with live_lines(output) as lines:
            outcomes = stopping.stop(
                fleet,
                names=[server] if server else [],
                force=force,
                dry_run=dry_run,
                grace_seconds=grace,
                wait=wait,
                on_progress=lines,
            )
        code = output.outcomes(outcomes, stop_line, is_left)
        show_processes(output, outcomes)
        finish(code)


def _serve(
    host: str | None,
    hosts: str | None,
    inventory: str | None,
    json: bool,
    *,
    mode: str,
    replace: bool,
    dry_run: bool,
    wait: bool,
) -> None:
    with session(host, hosts, inventory, json) as (fleet, output):
        with live_lines(output) as lines:
            outcomes = serving.serve(fleet, mode=mode, replace=replace, dry_run=dry_run, wait=wait, on_progress=lines)
        code = output.outcomes(outcomes, server_line)
        show_plan(output, outcomes)
        finish(code)
