"""Makes a call on many hosts at once, with one outcome for each host; a failed host does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel

from hosts.errors import RoostError
from hosts.inventory.model import Host, Inventory
from hosts.transport.backend import DEFAULT_DEADLINE_SECONDS, Backend
from hosts.transport.local import LocalBackend
from hosts.transport.ssh import SshBackend
from remote.shared.messages.envelope import Progress
from remote.shared.supervised.pools import Pool, as_finished

POOL_SIZE = 64
"""The most hosts that are called at once; a laptop opens 64 connections in about a second."""

T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)
Request = BaseModel | Callable[[Host], BaseModel]
OnProgress = Callable[[Host, Progress], None]


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The outcome of a call on one host: its value, or the error that ended it."""

    host: Host
    value: T | None = None
    error: RoostError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def result(self) -> T:
        """The value; raises the host's error if the call failed."""
        if self.error is not None:
            raise self.error
        assert self.value is not None
        return self.value


class Watcher(Protocol):
    """Is called when each host's call begins and ends, in the thread that called the fleet."""

    def begun(self, host: Host) -> None:
        """The call on this host begins."""

    def ended(self, outcome: Outcome[Any]) -> None:
        """The call on this host has ended, with a value or an error; others may still be running."""


def new_backend(host: Host) -> Backend:
    """Return the backend for the host's `connection` setting."""
    return LocalBackend(host) if host.connection == "local" else SshBackend(host)


class Fleet:
    """The hosts that a command works on, each with one open backend."""

    def __init__(self, inventory: Inventory, hosts: list[Host]) -> None:
        self.inventory = inventory
        self.hosts = hosts
        self._backends = {host.name: new_backend(host) for host in hosts}
        self._local: Backend | None = None
        self.watcher: Watcher | None = None

    def backend(self, host: Host) -> Backend:
        """Return the host's backend, which holds the host's only connection."""
        return self._backends[host.name]

    def reached_by(self, host: Host, backend: Backend) -> None:
        """Make every later call on this host through another backend."""
        self._backends[host.name] = backend

    @property
    def local(self) -> Backend:
        """The laptop's own backend, for data verbs."""
        if self._local is None:
            self._local = new_backend(self.inventory.local)
        return self._local

    def narrowed(self, hosts: list[Host]) -> Fleet:
        """Return a fleet of these hosts that uses the same connections."""
        fleet = Fleet(self.inventory, [])
        fleet.hosts = hosts
        fleet.watcher = self.watcher
        fleet._backends = {host.name: self._backends[host.name] for host in hosts}
        return fleet

    def unwatched(self) -> Fleet:
        """Return a fleet of the same hosts and connections, without a watcher."""
        fleet = self.narrowed(self.hosts)
        fleet.watcher = None
        return fleet

    def each(
        self, action: Callable[[Backend], T], on_outcome: Callable[[Outcome[T]], None] | None = None
    ) -> list[Outcome[T]]:
        """Run `action` for every host at once and return the outcomes in the fleet's order.

        Only a RoostError becomes an outcome; any other exception is a bug and is raised.
        """
        if not self.hosts:
            return []
        watcher = self.watcher
        if watcher is not None:
            for host in self.hosts:
                watcher.begun(host)
        outcomes: dict[str, Outcome[T]] = {}
        try:
            with Pool(min(POOL_SIZE, len(self.hosts)), "host") as pool:
                for future in as_finished([pool.submit(self._outcome, host, action) for host in self.hosts]):
                    outcome = future.result()
                    outcomes[outcome.host.name] = outcome
                    if watcher is not None:
                        watcher.ended(outcome)
                    if on_outcome is not None:
                        on_outcome(outcome)
        except BaseException:
            self.close()
            raise
        return [outcomes[host.name] for host in self.hosts]

    def call(
        self,
        verb: str,
        request: Request,
        result: type[R],
        *,
        deadline: float | None = DEFAULT_DEADLINE_SECONDS,
        on_progress: OnProgress | None = None,
        on_item: Callable[[Host, dict[str, Any]], None] | None = None,
        on_outcome: Callable[[Outcome[R]], None] | None = None,
    ) -> list[Outcome[R]]:
        """Run one verb on every host; `request` is a message, or a function that returns a host's message."""

        def action(backend: Backend) -> R:
            host = backend.host
            message = request if isinstance(request, BaseModel) else request(host)
            return backend.call(
                verb,
                message,
                result,
                deadline=deadline,
                on_progress=None if on_progress is None else lambda line: on_progress(host, line),
                on_item=None if on_item is None else lambda value: on_item(host, value),
            )

        return self.each(action, on_outcome)

    def _outcome(self, host: Host, action: Callable[[Backend], T]) -> Outcome[T]:
        try:
            return Outcome(host, action(self.backend(host)))
        except RoostError as error:
            return Outcome(host, error=error)

    def close(self) -> None:
        """Close every connection; detached processes on the hosts keep running."""
        for backend in self._backends.values():
            backend.close()


@contextmanager
def fleet_of(inventory: Inventory, hosts: list[Host]) -> Iterator[Fleet]:
    """Yield a fleet whose connections are closed when the block ends."""
    fleet = Fleet(inventory, hosts)
    try:
        yield fleet
    finally:
        fleet.close()
