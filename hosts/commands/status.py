"""`inv status`: the state of runs and servers on every host. Read-only; works at any time, from any laptop."""

from __future__ import annotations

from pydantic import BaseModel, Field

from hosts.commands.moves import between_hosts
from hosts.commands.runs import one_identity
from hosts.fleet import Fleet, Outcome
from hosts.transport.backend import Backend
from remote.shared.messages.extract import RunStatus, Standing, StandingRequest
from remote.shared.messages.server import ServersRequest, ServersResult

DEADLINE_SECONDS = 60.0


class HostStatus(BaseModel):
    """One host: its runs, its GPUs, and its servers."""

    standing: Standing
    servers: ServersResult
    cost_per_hour: float | None = None
    """Dollars for an hour of the host, from the inventory."""
    not_taken: dict[str, dict[str, int]] = Field(default_factory=dict)
    """How many records the host gave away that did not arrive: run, then the host that was to get them."""


LOOK_SECONDS = 15.0
"""Deadline in seconds of a reading beside other work, which must not wait for it."""


def status(fleet: Fleet, run: str = "") -> list[Outcome[HostStatus]]:
    """Ask every host at once. Without a name, each answers for its working runs, or else for its newest run.

    If no host works on a run, its hosts are also asked for records that lie between two of them. While one works, an
    attached laptop may be about to hand records over.
    """

    def one(backend: Backend) -> HostStatus:
        return HostStatus(
            standing=backend.call("standing", StandingRequest(run=run), Standing, deadline=DEADLINE_SECONDS),
            servers=backend.call("servers", ServersRequest(ask=True), ServersResult, deadline=DEADLINE_SECONDS),
            cost_per_hour=backend.host.cost_per_hour,
        )

    outcomes = fleet.each(one)
    found = {outcome.host.name: outcome.value for outcome in outcomes if outcome.value is not None}
    told: dict[str, list[RunStatus]] = {}
    for host in found.values():
        for stood in host.standing.runs:
            told.setdefault(stood.run, []).append(stood)
    for name, stands in told.items():
        if len(stands) > 1 and all(stood.task == "extract" and not stood.alive for stood in stands):
            identity = one_identity(fleet, name)
            for giver, lost in (between_hosts(fleet, identity) if identity is not None else {}).items():
                if giver in found:
                    found[giver].not_taken[name] = lost
    return outcomes


def at_work(fleet: Fleet) -> dict[str, list[RunStatus]]:
    """Return the working runs of each host; a host that does not answer in time has none."""
    told = fleet.call("standing", StandingRequest(), Standing, deadline=LOOK_SECONDS)
    return {
        outcome.host.name: [run for run in outcome.value.runs if run.alive]
        for outcome in told
        if outcome.value is not None
    }
