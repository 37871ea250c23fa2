"""Tasks for capture in the hosts' SGLang: `attach`, `attached`, `detach` (`deploy` also attaches)."""

from __future__ import annotations

from functools import partial
from typing import cast, get_args

from invoke.context import Context

from hosts.console.attach import (
    attach_line,
    attached_line,
    detach_line,
    is_amiss,
    is_strange,
    probe_line,
    show_standing,
)
from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.inventory.model import Host
from hosts.tasks.session import DRY_RUN, JSON, TARGET, WAIT, finish, roost_task, session
from remote.shared.messages.attach import (
    AttachedRequest,
    AttachReport,
    AttachRequest,
    DetachRequest,
    ProbeReport,
    ProbeRequest,
)
from remote.shared.messages.server import Attach

DEADLINE_SECONDS = 300.0
"""Importing SGLang on a host with cold file caches takes a minute and more."""


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    WAIT,
    way="auto, plugin or patch (default: the inventory's `attach`)",
    probe="change nothing: say whether each host's model is captured; if not, whether its loop has a known shape",
    example="inv attach --hosts all --dry-run",
)
def attach(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    way: str | None = None,
    probe: bool = False,
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Attach capture to the hosts' SGLang and check that it is imported; `deploy` does this too."""
    with session(host, hosts, inventory, json) as (fleet, output):
        chosen = _way(way)
        if probe:
            finish(_probe(fleet, output))
            return

        def request(host: Host) -> AttachRequest:
            return AttachRequest(attach=chosen or host.attach, env=host.env, dry_run=dry_run, wait_for_lock=wait)

        with live_lines(output, fleet) as lines:
            outcomes = fleet.call("attach", request, AttachReport, deadline=DEADLINE_SECONDS, on_progress=lines)
        finish(output.outcomes(outcomes, partial(attach_line, dry_run=dry_run)))


@roost_task(
    TARGET,
    JSON,
    imports="import a model module with the host's Python (takes seconds; --no-imports leaves it out)",
    example="inv attached --hosts all",
)
def attached(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    imports: bool = True,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show the state of capture: which SGLang, which files, and which running servers capture."""
    with session(host, hosts, inventory, json) as (fleet, output):

        def request(host: Host) -> AttachedRequest:
            return AttachedRequest(env=host.env, check_import=imports)

        with live_lines(output, fleet) as lines:
            outcomes = fleet.call("attached", request, AttachReport, deadline=DEADLINE_SECONDS, on_progress=lines)
        details = partial(show_standing, output, outcomes)
        finish(output.outcomes(outcomes, attached_line, is_amiss, amiss="something needs a look", details=details))


@roost_task(TARGET, JSON, DRY_RUN, WAIT, example="inv detach --host gpu1")
def detach(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Restore the hosts' SGLang byte for byte."""
    with session(host, hosts, inventory, json) as (fleet, output):

        def request(host: Host) -> DetachRequest:
            return DetachRequest(env=host.env, dry_run=dry_run, wait_for_lock=wait)

        with live_lines(output, fleet) as lines:
            outcomes = fleet.call("detach", request, AttachReport, deadline=DEADLINE_SECONDS, on_progress=lines)
        finish(output.outcomes(outcomes, partial(detach_line, dry_run=dry_run)))


def _probe(fleet: Fleet, output: Output) -> int:
    """Ask each host about the inventory's `model`; exit 1 if the loop of one has no known shape."""

    def request(host: Host) -> ProbeRequest:
        if host.model is None:
            raise UsageError(f"The inventory names no `model` for {host.name}.")
        return ProbeRequest(model=host.model, env=host.env)

    outcomes = fleet.call("probe", request, ProbeReport, deadline=DEADLINE_SECONDS)
    return output.outcomes(outcomes, probe_line, is_strange, amiss="has a loop of no known shape")


def _way(text: str | None) -> Attach | None:
    if text is not None and text not in get_args(Attach):
        raise UsageError(f"--way {text} is not one of {', '.join(get_args(Attach))}.")
    return cast("Attach | None", text)
