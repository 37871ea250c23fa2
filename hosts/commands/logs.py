"""`inv logs`: follows the logs of many hosts; a cut connection neither loses nor repeats a line.

Every batch tells the byte at which the next line begins, and after a cut the next call resumes there.
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
"""The most logs of one host that are followed."""

OnItem = Callable[[Host, LogItem], None]
OnLost = Callable[[Host, RoostError, float], None]


def logs(
    fleet: Fleet, request: LogsRequest, on_item: OnItem, on_lost: OnLost, stopped: threading.Event | None = None
) -> list[Outcome[LogsResult]]:
    """Pass every host's lines to `on_item` in batches; with `request.follow`, until an interrupt or `stopped`.

    If a connection breaks while following, `on_lost` gets the error and the seconds until the next attempt. A host that
    cannot be reached at the start has an error as its outcome; the other hosts continue.
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
    """Reads one host's lines, over as many connections as needed."""

    def __init__(
        self, backend: Backend, request: LogsRequest, on_item: OnItem, on_lost: OnLost, stopped: threading.Event
    ) -> None:
        self._backend, self._request = backend, request
        self._on_item, self._on_lost, self._stopped = on_item, on_lost, stopped
        self._positions: dict[LogSource, LogPosition] | None = None
        """The byte at which each source continues; None until the host has sent the first positions."""
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
                raise ProtocolError("The host sent lines before it said at which byte they begin.")
            self._positions[event.source] = event.end
        if self._positions is not None and len(self._positions) > MOST_SOURCES:
            raise ProtocolError(f"The host sent lines of more than {MOST_SOURCES:,} logs.")
        if not isinstance(event, LogStart):
            self._on_item(self._backend.host, event)
