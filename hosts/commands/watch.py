"""A person's actions on a watched host: pause or resume its runs, and read the end of its log."""

from __future__ import annotations

from typing import Any

from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.transport.backend import Backend
from remote.shared.messages.extract import ControlRequest, RunStatus, Standing, StandingRequest
from remote.shared.messages.logs import LOG_EVENT, LogLines, LogNotice, LogSource, LogsRequest, LogsResult

TAIL_LINES = 30
DEADLINE_SECONDS = 30.0


class HostActions:
    """Acts on one host at a time, over the connections that the view listens on."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def steer(self, host: str, action: str) -> str:
        """Pause or resume every working run of the host; raises RoostError."""
        backend = self._backend(host)
        standing = backend.call("standing", StandingRequest(), Standing, deadline=DEADLINE_SECONDS)
        told = []
        for run in (one.run for one in standing.runs if one.alive):
            request = ControlRequest.model_validate({"run": run, "action": action})
            told.append(backend.call("control", request, RunStatus, deadline=DEADLINE_SECONDS))
        if not told:
            raise UsageError("No run is at work on this host any more.")
        return ", ".join(f"{one.run}: {one.word or one.state.status}" for one in told)

    def tail(self, host: str) -> list[str]:
        """Return the last lines of the newest run's log, or of the servers' logs without a run; raises RoostError."""
        backend = self._backend(host)
        runs = backend.call("standing", StandingRequest(), Standing, deadline=DEADLINE_SECONDS).runs
        sources = [LogSource(kind="run", name=run.run) for run in runs[:1]]
        lines: list[str] = []

        def take(value: dict[str, Any]) -> None:
            event = LOG_EVENT.validate_python(value)
            if isinstance(event, LogLines):
                lines.extend(event.lines)
            elif isinstance(event, LogNotice):
                lines.append(event.text)

        request = LogsRequest(sources=sources, lines=TAIL_LINES)
        backend.call("logs", request, LogsResult, deadline=DEADLINE_SECONDS, on_item=take)
        return lines[-TAIL_LINES:]

    def _backend(self, host: str) -> Backend:
        return next(self._fleet.backend(one) for one in self._fleet.hosts if one.name == host)
