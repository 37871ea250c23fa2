"""Listens to all hosts at once and keeps each host's last state. A silent host counts as lost and is asked again.

Laptop's side, started by `inv watch`. A thread for each host keeps one call open (the verb `glance`). Views take a
`FleetView` whenever they draw, and never wait for a host.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from hosts.errors import ProtocolError, RoostError
from hosts.fleet import Fleet
from hosts.inventory.model import Host
from hosts.series.view import FleetView, HostView
from remote.shared.messages.history import Glance, GlanceEnd, GlanceRequest
from remote.shared.supervised.threads import Thread

AGAIN_SECONDS, AGAIN_CAP_SECONDS = 5.0, 60.0
"""Seconds after which a lost host is asked again. The pause doubles each time, up to the longest pause."""
SILENT_SECONDS = 35.0
"""Seconds. Glances come every few seconds, and the transport itself notices a lost connection after 30 s."""
MOST_RATES = 240


@dataclass
class _Heard:
    """The last messages of one host."""

    host: Host
    glance: Glance | None = None
    heard_at: float = 0.0
    heard: float = 0.0
    """The time of `heard_at` by the monotonic clock."""
    error: RoostError | None = None
    lost_at: float = 0.0
    rates: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_RATES))


class FleetSeries:
    """Listens to the fleet until `close`. A context manager."""

    def __init__(self, fleet: Fleet, run: str = "", every_seconds: float = 2.0) -> None:
        self._fleet = fleet
        self._request = GlanceRequest(run=run, every_seconds=every_seconds)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._heard = {host.name: _Heard(host) for host in fleet.hosts}
        self._fault: BaseException | None = None
        self._threads: list[Thread] = []

    def __enter__(self) -> FleetSeries:
        self._threads = [
            Thread(lambda heard=heard: self._listen(heard), f"glance-{name}", self._broke)  # type: ignore[misc]
            for name, heard in self._heard.items()
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. The threads end with their connections."""
        self._closed.set()
        self._fleet.close()

    def view(self) -> FleetView:
        """Return the known state of the fleet; raises the exception that ended a listening thread."""
        if self._fault is not None:
            raise self._fault
        with self._lock:
            return FleetView(time.time(), [self._view(heard) for heard in self._heard.values()])

    @property
    def all_heard(self) -> bool:
        """Return whether every host has answered or failed."""
        with self._lock:
            return all(one.glance is not None or one.error is not None for one in self._heard.values())

    def _view(self, heard: _Heard) -> HostView:
        error, lost_at = heard.error, heard.lost_at
        if error is None and heard.glance is not None and time.monotonic() - heard.heard > SILENT_SECONDS:
            error, lost_at = RoostError(f"The host has sent nothing for {SILENT_SECONDS:.0f} s."), heard.heard_at
        return HostView(
            name=heard.host.name,
            glance=heard.glance,
            heard_at=heard.heard_at,
            error=error,
            lost_at=lost_at,
            rates=tuple(heard.rates),
            cost_per_hour=heard.host.cost_per_hour,
        )

    def _listen(self, heard: _Heard) -> None:
        """Keep one call open, and call again whenever it ends."""
        backend, pause = self._fleet.backend(heard.host), AGAIN_SECONDS
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                backend.call(
                    "glance", self._request, GlanceEnd, deadline=None, on_item=lambda value: self._take(heard, value)
                )
            except RoostError as error:
                with self._lock:
                    if heard.error is None:
                        heard.lost_at = time.time()
                    heard.error = error
            pause = AGAIN_SECONDS if heard.heard > began else min(2 * pause, AGAIN_CAP_SECONDS)
            self._closed.wait(pause)

    def _take(self, heard: _Heard, value: dict[str, Any]) -> None:
        try:
            glance = Glance.model_validate(value)
        except ValidationError as error:
            raise ProtocolError(f"The host sent a message that cannot be read: {error.errors()[0]['msg']}.") from error
        with self._lock:
            if glance.recent and not heard.rates:
                heard.rates.extend((point.at, point.values.get("tokens_per_second", 0.0)) for point in glance.recent)
            heard.glance, heard.heard_at, heard.heard, heard.error = glance, time.time(), time.monotonic(), None
            rate = sum(run.rate for run in glance.reading.runs)
            heard.rates.append((glance.reading.at, rate))

    def _broke(self, error: BaseException) -> None:
        if not self._closed.is_set():
            self._fault = error
