"""`inv status`: how a run and the servers stand on every host; read-only, at any time, from anywhere."""

from __future__ import annotations

from pydantic import BaseModel

from hosts.fleet import Fleet, Outcome
from hosts.transport.backend import Backend
from remote.shared.messages.extract import RunRequest, RunStatus
from remote.shared.messages.server import ServersRequest, ServersResult

DEADLINE_SECONDS = 60.0


class HostStatus(BaseModel):
    """One host: its run, and its servers."""

    run: RunStatus
    servers: ServersResult


def status(fleet: Fleet, run: str = "") -> list[Outcome[HostStatus]]:
    """Ask every host at once; with no name, each answers for its newest run."""

    def one(backend: Backend) -> HostStatus:
        return HostStatus(
            run=backend.call("status", RunRequest(run=run), RunStatus, deadline=DEADLINE_SECONDS),
            servers=backend.call("servers", ServersRequest(), ServersResult, deadline=DEADLINE_SECONDS),
        )

    return fleet.each(one)
