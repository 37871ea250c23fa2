"""Runs one server of a host in another mode or with other settings, and restores it afterwards.

Laptop's side, for `inv bench --mode` and `inv tune`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hosts.errors import HostError, UsageError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.inventory.servers import server_specs
from hosts.transport.backend import Backend
from remote.shared.messages.server import (
    ServeRequest,
    ServeResult,
    ServerReport,
    ServersRequest,
    ServersResult,
    StopRequest,
    StopResult,
)

START_OVERHEAD_SECONDS = 900.0
"""Added to the wait for ready: checking flags, stopping the earlier server, a cold file system."""
STOP_SECONDS = 330.0

T = TypeVar("T")


def each_to_its_end(fleet: Fleet, action: Callable[[Backend], T], say: Callable[[str], None]) -> list[Outcome[T]]:
    """Run `fleet.each` for actions that restore a server at their end; after Ctrl-C, wait until each has done so."""
    begun: dict[str, threading.Event] = {}

    def to_its_end(backend: Backend) -> T:
        begun[backend.host.name] = threading.Event()
        try:
            return action(backend)
        finally:
            begun[backend.host.name].set()

    try:
        return fleet.each(to_its_end)
    except KeyboardInterrupt:
        say("Interrupted; each server is being restored. Ctrl-C again leaves the servers as they are.")
        for ended in begun.values():
            ended.wait()
        raise


class OneServer:
    """One server, by its name in the inventory; the host's other servers are not touched."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend, self.name = backend, name

    def serve(self, host: Host, mode: str, *, wait: bool = False) -> None:
        """Run the server in `mode` with the settings of `host`, unless it runs with exactly those already.

        With `wait`, wait for another operator's command on the host instead of refusing.
        Raises UsageError if the inventory has no such server, and the host's error if the server does not start.
        """
        specs = [spec for spec in server_specs(host, mode) if spec.name == self.name]
        if not specs:
            names = ", ".join(spec.name for spec in server_specs(host, mode))
            raise UsageError(f"{host.name} has no server {self.name!r}.", remedy=f"Its servers: {names}.")
        patience = host.ready_timeout + START_OVERHEAD_SECONDS
        request = ServeRequest(servers=specs, replace=True, wait_for_lock=wait)
        self._backend.call("serve", request, ServeResult, deadline=patience)

    def mode(self) -> str | None:
        """Return the mode that the server runs in; None if it does not run.

        Raises HostError for a mode that is not in the inventory, because the server could not be restored.
        """
        running = [each.state for each in self._reports() if each.alive and each.state.name == self.name]
        if not running:
            return None
        if running[0].mode not in self._backend.host.modes:
            raise HostError(
                f"Server {self.name!r} runs in mode {running[0].mode!r}, which this inventory does not have, so it "
                "could not be restored.",
                remedy="Use the inventory that the server was started with, or stop the server first.",
            )
        return running[0].mode

    def put_back(self, mode: str | None) -> None:
        """Run the server in its former mode again, or stop it if it did not run.

        Waits for the host's lock, which the verb of a call that was cut may still hold for a moment.
        """
        if mode is not None:
            self.serve(self._backend.host, mode, wait=True)
        elif any(each.state.name == self.name for each in self._reports()):
            request = StopRequest(names=[self.name], wait_for_lock=True)
            self._backend.call("stop", request, StopResult, deadline=STOP_SECONDS)

    @contextmanager
    def serving(self, mode: str) -> Iterator[None]:
        """Run the server in `mode` within the block; a server already in `mode` is not restarted."""
        found = self.mode()
        if found == mode:
            yield
            return
        try:
            self.serve(self._backend.host, mode)
            yield
        finally:
            self.put_back(found)

    def _reports(self) -> list[ServerReport]:
        return self._backend.call("servers", ServersRequest(), ServersResult).servers
