"""`inv status`: the state of runs and servers on every host. Read-only; works at any time, from any laptop."""

from __future__ import annotations

from pydantic import BaseModel

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


LOOK_SECONDS = 15.0
"""Deadline in seconds of a reading beside other work, which must not wait for it."""


def status(fleet: Fleet, run: str = "") -> list[Outcome[HostStatus]]:
    """Ask every host at once. Without a name, each answers for its working runs, or else for its newest run."""

    def one(backend: Backend) -> HostStatus:
        return HostStatus(
            standing=backend.call("standing", StandingRequest(run=run), Standing, deadline=DEADLINE_SECONDS),
            servers=backend.call("servers", ServersRequest(ask=True), ServersResult, deadline=DEADLINE_SECONDS),
            cost_per_hour=backend.host.cost_per_hour,
        )

    return fleet.each(one)


def at_work(fleet: Fleet) -> dict[str, list[RunStatus]]:
    """Return the working runs of each host; a host that does not answer in time has none."""
    told = fleet.call("standing", StandingRequest(), Standing, deadline=LOOK_SECONDS)
    return {
        outcome.host.name: [run for run in outcome.value.runs if run.alive]
        for outcome in told
        if outcome.value is not None
    }
