"""A server of this host as the extractor sees it: ready or not, where its dumps appear, how much is in flight.

Runs on the host inside the extractor's event loop; reads `servers/<name>/state.json` and writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remote.servers.lifecycle import key, records
from remote.shared.errors import HostError
from remote.shared.messages.extract import Assignment
from remote.shared.messages.server import CaptureState, ServerState
from remote.shared.paths import ServerPaths
from remote.shared.processes import find
from remote.shared.shard.sessions import register
from remote.work.client import Client


@dataclass
class Budget:
    """An amount that may be out at once; a single taker larger than the limit is let through alone."""

    limit: int
    used: int = 0

    def admits(self, amount: int) -> bool:
        """Whether `amount` may be taken now."""
        return self.used == 0 or self.used + amount <= self.limit

    def take(self, amount: int) -> None:
        """Take `amount`, to be given back."""
        self.used += amount

    def give(self, amount: int) -> None:
        """Give back what was taken."""
        self.used -= amount


class Endpoint:
    """One server that takes this run's requests; `start` tells its lives apart."""

    def __init__(self, paths: ServerPaths, in_flight_tokens: int) -> None:
        self.name = paths.root.name
        self.tokens = Budget(in_flight_tokens)
        self.alone = False
        """A suspect record is in flight: nothing may accompany it, so that a crash names its cause."""
        self.requests = 0
        self.client: Client | None = None
        self._paths = paths
        self._state: ServerState | None = None
        self._stamp: tuple[int, int] = (0, 0)
        self._alive = False
        self._welcomed: tuple[int, float] | None = None

    def refresh(self) -> None:
        """Read the state file where it changed, and look whether the server's process lives."""
        try:
            status = self._paths.state.stat()
        except OSError:
            self._state = None
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._state, self._stamp = records.load(self._paths), stamp
        self._alive = self._state is not None and find(self._state.server) is not None

    def welcome(self, client: Client) -> None:
        """This life of the server was checked, and takes requests through `client`."""
        self.client, self._welcomed = client, self.life

    @property
    def is_new(self) -> bool:
        """Whether the server is ready in a life that was not checked yet, whoever read its record first."""
        return self.ready and self.life != self._welcomed

    def admits(self, tokens: int) -> bool:
        """Whether a record of so many tokens may be sent now."""
        return not self.is_new and not self.alone and self.tokens.admits(tokens)

    def begin(self, tokens: int, *, alone: bool) -> None:
        """Count a try in; its tokens are given back by themselves, as soon as the prefill is over."""
        self.tokens.take(tokens)
        self.requests += 1
        self.alone = alone

    def end(self) -> None:
        """Count a try out."""
        self.requests -= 1
        self.alone = False

    @property
    def ready(self) -> bool:
        """Whether the server took requests at the last `refresh`, by its record and the process table."""
        return self._state is not None and self._state.status == "ready" and self._alive

    @property
    def life(self) -> tuple[int, float]:
        """Changes with every start of the server."""
        if self._state is None or self._state.server is None:
            return (0, 0.0)
        return self._state.start, self._state.server.created_at

    @property
    def state(self) -> ServerState:
        """The record; only where it was ready."""
        assert self._state is not None
        return self._state

    @property
    def capture(self) -> CaptureState:
        """Capture as it is active in the server; raises HostError where it is not."""
        if self.state.capture is None:
            raise HostError(
                f"The server {self.name!r} runs without capture, in mode {self.state.mode!r}.",
                remedy="Start it in a mode that extracts: `inv serve --mode extract`.",
            )
        return self.state.capture

    @property
    def headers(self) -> dict[str, str]:
        """What every request to this life of the server carries; raises HostError if its key cannot be read."""
        return key.headers(self._paths)

    @property
    def dump_dir(self) -> Path:
        """Where its dumps appear."""
        return Path(self.capture.dump_dir)

    def register(self, nonce: str) -> None:
        """Have this life of the server capture the requests of a session; raises HostError if it cannot."""
        try:
            register(self.dump_dir, nonce)
        except OSError as error:
            raise HostError(f"The dump directory {self.dump_dir} cannot be written: {error.strerror}.") from error

    @property
    def lacks_dump_dir(self) -> bool:
        """Whether the server is ready and its dumps have nowhere to go: its supervisor makes the directory again."""
        return self.ready and self.state.capture is not None and not self.dump_dir.is_dir()

    @property
    def high_water_bytes(self) -> int:
        """What the dump directory holds at most."""
        return self.state.spec.capture.high_water_bytes if self.state.spec.capture else 0

    def why_not_ready(self) -> str:
        """One sentence for a person."""
        state = self._state
        if state is None:
            return f"There is no server {self.name!r} on this host."
        if state.status == "ready":
            return f"The server {self.name!r} is gone."
        return f"The server {self.name!r} is {state.status}{': ' + state.cause if state.cause else ''}."


def endpoints(assignment: Assignment, servers: list[ServerPaths]) -> list[Endpoint]:
    """The assignment's servers."""
    return [Endpoint(paths, assignment.in_flight_tokens) for paths in servers]
