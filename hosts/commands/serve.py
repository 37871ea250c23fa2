"""`inv serve` and `inv restart`: start the inventory's servers on every host and wait until each is really ready."""

from __future__ import annotations

from collections.abc import Callable

from hosts.commands.nodes import span_hosts
from hosts.commands.preflight import OnFinding, preflight
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.inventory.servers import server_specs
from remote.shared.messages.envelope import Progress
from remote.shared.messages.server import ServeRequest, ServeResult

OVERHEAD_SECONDS = 900.0
"""Added to the wait for ready: checking flags, stopping an earlier server, a cold file system."""


def serve(
    fleet: Fleet,
    *,
    mode: str,
    restart: bool = False,
    dry_run: bool = False,
    wait: bool = False,
    on_progress: Callable[[Host, Progress], None] | None = None,
    on_outcome: Callable[[Outcome[ServeResult]], None] | None = None,
    on_finding: OnFinding | None = None,
) -> list[Outcome[ServeResult]]:
    """Start the servers of `mode` on all hosts at once; with `restart`, stop running servers first.

    A mistake in the inventory, such as a missing mode, raises UsageError before any host is changed. If a server spans
    hosts, no part starts unless every host can start its part. `on_finding` gets each finding that does not prevent a
    start.
    """
    specs = span_hosts(fleet, {host.name: server_specs(host, mode) for host in fleet.hosts})
    patience = max((host.ready_timeout for host in fleet.hosts), default=0.0) + OVERHEAD_SECONDS
    looked = preflight(fleet, on_progress, on_finding)
    fit = fleet.narrowed([outcome.host for outcome in looked if outcome.ok])
    unfit = [Outcome[ServeResult](outcome.host, error=outcome.error) for outcome in looked if not outcome.ok]

    def call(only_plan: bool) -> list[Outcome[ServeResult]]:
        def request(host: Host) -> ServeRequest:
            return ServeRequest(servers=specs[host.name], restart=restart, dry_run=only_plan, wait_for_lock=wait)

        told = None if only_plan else on_outcome
        if told is not None:
            for outcome in unfit:
                told(outcome)
        found = fit.call("serve", request, ServeResult, deadline=patience, on_progress=on_progress, on_outcome=told)
        by_host = {outcome.host.name: outcome for outcome in [*found, *unfit]}
        return [by_host[host.name] for host in fleet.hosts]

    if not dry_run and any(spec.nodes for found in specs.values() for spec in found):
        planned = call(only_plan=True)
        if not all(outcome.ok for outcome in planned):
            return planned
    return call(only_plan=dry_run)
