"""`inv status`: the state of a run and of the servers on every host; changes nothing."""

from __future__ import annotations

from pydantic import BaseModel

from hosts.fleet import Fleet, Outcome
from hosts.transport.backend import Backend
from remote.shared.messages.extract import RunRequest, RunStatus
from remote.shared.messages.server import ServersRequest, ServersResult

DEADLINE_SECONDS = 60.0


class HostStatus(BaseModel):
    """The state of one host's run and servers."""

    run: RunStatus
    servers: ServersResult


def status(fleet: Fleet, run: str = "") -> list[Outcome[HostStatus]]:
    """Ask every host at once; without a name, each host answers for its newest run."""

    def one(backend: Backend) -> HostStatus:
        return HostStatus(
            run=backend.call("status", RunRequest(run=run), RunStatus, deadline=DEADLINE_SECONDS),
            servers=backend.call("servers", ServersRequest(ask=True), ServersResult, deadline=DEADLINE_SECONDS),
        )

    return fleet.each(one)
