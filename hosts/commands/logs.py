"""`inv logs`: lines of many hosts' logs as they come, over cut connections without one lost or doubled.

Each host's verb tells with every batch at which byte the next line begins; after a cut the next call resumes there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from hosts.errors import ConnectionLostError, HostUnreachableError, ProtocolError, RoostError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from remote.shared.messages.logs import (
    LOG_EVENT,
    LogItem,
    LogLines,
    LogPosition,
    LogSource,
    LogsRequest,
    LogsResult,
    LogStart,
)

BACKLOG_DEADLINE_SECONDS = 600.0
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
MOST_SOURCES = 10_000
"""Logs of one host whose places are kept."""

OnItem = Callable[[Host, LogItem], None]
OnLost = Callable[[Host, RoostError, float], None]


def logs(
    fleet: Fleet, request: LogsRequest, on_item: OnItem, on_lost: OnLost, stopped: threading.Event | None = None
) -> list[Outcome[LogsResult]]:
    """Hand out every host's lines, one batch at a time; with `request.follow` an interrupt, or `stopped`, ends it.

    `on_lost` is told of a connection that broke while following, and in how many seconds it is tried again. A host
    that cannot be reached in the first place is an outcome with an error, and the others go on.
    """
    stopped, printing = stopped or threading.Event(), threading.Lock()

    def hand_out(host: Host, item: LogItem) -> None:
        with printing:
            on_item(host, item)

    def one(backend: Backend) -> LogsResult:
        return _Reading(backend, request, hand_out, on_lost, stopped).run()

    try:
        return fleet.each(one)
    finally:
        stopped.set()


class _Reading:
    """One host's lines, from one connection to the next."""

    def __init__(
        self, backend: Backend, request: LogsRequest, on_item: OnItem, on_lost: OnLost, stopped: threading.Event
    ) -> None:
        self._backend, self._request = backend, request
        self._on_item, self._on_lost, self._stopped = on_item, on_lost, stopped
        self._positions: dict[LogSource, LogPosition] | None = None
        """Where each source goes on; None until the host has said where they begin."""
        self._heard = False

    def run(self) -> LogsResult:
        pause = FIRST_PAUSE_SECONDS
        while True:
            self._heard = False
            try:
                return self._call()
            except (ConnectionLostError, HostUnreachableError, ProtocolError) as error:
                if not self._request.follow or self._positions is None or self._stopped.is_set():
                    raise
                pause = FIRST_PAUSE_SECONDS if self._heard else min(2 * pause, LONGEST_PAUSE_SECONDS)
                self._on_lost(self._backend.host, error, pause)
                if self._stopped.wait(pause):
                    raise

    def _call(self) -> LogsResult:
        resume = None if self._positions is None else list(self._positions.values())
        request = self._request.model_copy(update={"resume": resume})
        deadline = None if self._request.follow else BACKLOG_DEADLINE_SECONDS
        return self._backend.call("logs", request, LogsResult, deadline=deadline, on_item=self._take)

    def _take(self, value: dict[str, object]) -> None:
        event = LOG_EVENT.validate_python(value)
        self._heard = True
        if isinstance(event, LogStart):
            self._positions = {position.source: position for position in event.positions}
        elif isinstance(event, LogLines):
            if self._positions is None:
                raise ProtocolError("The host sent lines before it said where they begin.")
            self._positions[event.source] = event.end
        if self._positions is not None and len(self._positions) > MOST_SOURCES:
            raise ProtocolError(f"The host speaks of over {MOST_SOURCES:,} logs.")
        if not isinstance(event, LogStart):
            self._on_item(self._backend.host, event)
