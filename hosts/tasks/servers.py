"""Tasks that start and stop servers: `serve`, `restart`, `stop`, `free`."""

from __future__ import annotations

from functools import partial

from invoke.context import Context

from hosts.commands import serve as serving
from hosts.commands import status as standing
from hosts.console.extraction import show_left_behind
from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.console.servers import (
    IN_THE_WAY,
    is_left,
    server_line,
    show_finding,
    show_keys,
    show_plan,
    show_processes,
    stop_line,
)
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.inventory.model import Host
from hosts.inventory.servers import server_needs
from hosts.tasks.clusters import CLUSTER, OF_JOB, cluster_stop, refuse_without_cluster
from hosts.tasks.notifying import NOTIFY, Teller, keep_watch
from hosts.tasks.session import DRY_RUN, JSON, TARGET, WAIT, finish, roost_task, session
from remote.shared.messages.server import StopRequest, StopResult

STOP_OVERHEAD_SECONDS = 300.0
"""Added to the grace period, for SIGKILL, waiting for GPU memory, and another command's lock."""

DEFAULT_MODE = "extract"
_MODE = {"mode": "mode of the inventory: extract (captures hidden states; the default), serve, or your own"}
_ENDING = {
    "force": "also end the processes of others that are in the way: exactly those that --dry-run lists",
    "grace": "seconds between SIGTERM and SIGKILL",
}


@roost_task(TARGET, JSON, DRY_RUN, WAIT, _MODE, NOTIFY, example="inv serve --hosts all --mode extract")
def serve(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    mode: str = "",
    notify: bool = False,
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Start the servers, detached, and wait until each generates and captures correctly."""
    _serve(host, hosts, inventory, json, mode=mode, restart=False, notify=notify, dry_run=dry_run, wait=wait)


@roost_task(TARGET, JSON, DRY_RUN, WAIT, _MODE, NOTIFY, example="inv restart --host gpu1 --mode extract")
def restart(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    mode: str = "",
    notify: bool = False,
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Stop Roost's own servers and start them again with the inventory's current settings."""
    _serve(host, hosts, inventory, json, mode=mode, restart=True, notify=notify, dry_run=dry_run, wait=wait)


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    WAIT,
    _ENDING,
    server="only this server (default: all of Roost's on the host)",
    cluster=CLUSTER,
    run="with --cluster: name of the run whose jobs are cancelled (default: the one planned last)",
    job=OF_JOB + ", which is cancelled",
    example="inv stop --hosts all --dry-run",
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
    cluster: str = "",
    run: str = "",
    job: str = "",
) -> None:
    """Stop Roost's servers; other processes on their GPUs, port or dump directory are named, and ended with --force.

    With --cluster, cancel a run's own jobs instead, and with them the servers of its replicas.
    """
    if cluster:
        others: dict[str, object] = {"host": host, "hosts": hosts, "server": server, "force": force}
        cluster_stop(cluster, run, inventory, json, others, dry_run=dry_run, job=job)
        return
    refuse_without_cluster(json, job=bool(job))
    with session(host, hosts, inventory, json) as (fleet, output):
        if run:
            raise UsageError("--run names the run whose jobs are cancelled.", remedy="Add --cluster NAME.")
        names = [server] if server else []
        _stop(fleet, output, names=names, everything=False, force=force, grace=grace, wait=wait, dry_run=dry_run)


@roost_task(TARGET, JSON, DRY_RUN, WAIT, _ENDING, example="inv free --host gpu1 --dry-run")
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
    """Free the hosts for Roost: like stop, but for any SGLang process and all leftover shared memory."""
    with session(host, hosts, inventory, json) as (fleet, output):
        _stop(fleet, output, names=[], everything=True, force=force, grace=grace, wait=wait, dry_run=dry_run)


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
    """Stop the servers `names`, or all; with `everything`, any SGLang process counts as being in the way."""
    if not grace >= 0:
        raise UsageError(f"--grace is {grace:g}, but must be a number of seconds from 0 on.")

    def request(host: Host) -> StopRequest:
        return StopRequest(
            names=names,
            needs=server_needs(host),
            everything=everything,
            force=force,
            dry_run=dry_run,
            grace_seconds=grace,
            wait_for_lock=wait,
        )

    with live_lines(output, fleet) as lines:
        working = standing.at_work(fleet)
        deadline = grace + STOP_OVERHEAD_SECONDS
        outcomes = fleet.call("stop", request, StopResult, deadline=deadline, on_progress=lines)
    code = output.outcomes(
        outcomes,
        partial(stop_line, dry_run=dry_run, force=force),
        partial(is_left, force=force),
        amiss=IN_THE_WAY,
        details=partial(show_processes, output, outcomes, own=dry_run),
    )
    stopped = {outcome.host.name for outcome in outcomes if outcome.value is not None and outcome.value.stopped}
    show_left_behind(output, {host: runs for host, runs in working.items() if host in stopped}, dry_run=dry_run)
    finish(code)


def _serve(
    host: str | None,
    hosts: str | None,
    inventory: str | None,
    json: bool,
    *,
    mode: str,
    restart: bool,
    notify: bool,
    dry_run: bool,
    wait: bool,
) -> None:
    with session(host, hosts, inventory, json) as (fleet, output):
        if not mode:
            mode = DEFAULT_MODE
            output.note("Using mode extract, which captures hidden states, because no --mode was given.")
        teller = Teller(fleet, output, f"servers ({mode})", "ready", server_line) if notify and not dry_run else None
        output.detached = "" if dry_run else f"any server that was started on {', '.join(h.name for h in fleet.hosts)}"
        with live_lines(output, fleet) as lines:
            if not dry_run:
                keep_watch(fleet, output, teller)
            outcomes = serving.serve(
                fleet,
                mode=mode,
                restart=restart,
                dry_run=dry_run,
                wait=wait,
                on_progress=lines,
                on_outcome=teller,
                on_finding=partial(show_finding, output),
            )
        code = output.outcomes(outcomes, server_line, details=partial(show_plan, output, outcomes))
        show_keys(output, outcomes)
        finish(code)
