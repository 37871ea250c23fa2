"""A server of this host for detached work: whether it is ready, its dump directory, its tokens in flight.

Runs on the host inside the event loop; reads `servers/<name>/state.json` and writes nothing.
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
    """A limit on an amount in use. An amount above the limit is admitted only if nothing else is in use."""

    limit: int
    used: int = 0

    def admits(self, amount: int) -> bool:
        """Return whether `amount` may be taken now."""
        return self.used == 0 or self.used + amount <= self.limit

    def take(self, amount: int) -> None:
        """Take `amount`."""
        self.used += amount

    def give(self, amount: int) -> None:
        """Give back `amount`."""
        self.used -= amount


class Endpoint:
    """One server that takes this run's requests, through all of its restarts."""

    def __init__(self, paths: ServerPaths, in_flight_tokens: int) -> None:
        self.name = paths.root.name
        self.tokens = Budget(in_flight_tokens)
        self.alone = False
        """Whether a suspected record is in flight alone, so that a crash can be attributed to the record."""
        self.requests = 0
        self.client: Client | None = None
        self._paths = paths
        self._state: ServerState | None = None
        self._stamp: tuple[int, int] = (0, 0)
        self._alive = False
        self._welcomed: tuple[int, float] | None = None

    def refresh(self) -> None:
        """Read the state file if it changed, and check whether the server's process lives."""
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
        """Note that this start of the server was checked, and takes requests through `client`."""
        self.client, self._welcomed = client, self.life

    @property
    def is_new(self) -> bool:
        """Whether the server is ready in a start that was not checked yet."""
        return self.ready and self.life != self._welcomed

    def admits(self, tokens: int) -> bool:
        """Return whether a record of `tokens` tokens may be sent now."""
        return not self.is_new and not self.alone and self.tokens.admits(tokens)

    def begin(self, tokens: int, *, alone: bool) -> None:
        """Count an attempt as begun. Its tokens are given back separately, after the prefill."""
        self.tokens.take(tokens)
        self.requests += 1
        self.alone = alone

    def end(self) -> None:
        """Count an attempt as ended."""
        self.requests -= 1
        self.alone = False

    @property
    def ready(self) -> bool:
        """Whether the server was ready at the last `refresh`, by its record and the process table."""
        return self._state is not None and self._state.status == "ready" and self._alive

    @property
    def life(self) -> tuple[int, float]:
        """A value that is different after every start of the server."""
        if self._state is None or self._state.server is None:
            return (0, 0.0)
        return self._state.start, self._state.server.created_at

    @property
    def state(self) -> ServerState:
        """The server's record; only valid if the server was ready."""
        assert self._state is not None
        return self._state

    @property
    def capture(self) -> CaptureState:
        """The capture that is active in the server; raises HostError if there is none."""
        if self.state.capture is None:
            raise HostError(
                f"The server {self.name!r} runs without capture, in mode {self.state.mode!r}.",
                remedy="Start the server in a mode with capture: `inv serve --mode extract`.",
            )
        return self.state.capture

    @property
    def headers(self) -> dict[str, str]:
        """Return the HTTP headers of requests to this server; raises HostError if its key cannot be read."""
        return key.headers(self._paths)

    @property
    def dump_dir(self) -> Path:
        """The server's dump directory."""
        return Path(self.capture.dump_dir)

    def register(self, nonce: str) -> None:
        """Let this server capture the requests of a session; raises HostError if it cannot."""
        try:
            register(self.dump_dir, nonce)
        except OSError as error:
            raise HostError(f"The dump directory {self.dump_dir} cannot be written: {error.strerror}.") from error

    @property
    def lacks_dump_dir(self) -> bool:
        """Whether the server is ready but its dump directory is missing, until its supervisor creates it again."""
        return self.ready and self.state.capture is not None and not self.dump_dir.is_dir()

    @property
    def high_water_bytes(self) -> int:
        """The largest size of the dump directory."""
        return self.state.spec.capture.high_water_bytes if self.state.spec.capture else 0

    def why_not_ready(self) -> str:
        """Return a sentence for a person on why the server is not ready."""
        state = self._state
        if state is None:
            return f"There is no server {self.name!r} on this host."
        if state.status == "ready":
            return f"The server {self.name!r} is gone."
        return f"The server {self.name!r} is {state.status}{': ' + state.cause if state.cause else ''}."


def endpoints(assignment: Assignment, servers: list[ServerPaths]) -> list[Endpoint]:
    """Return the assignment's servers."""
    return [Endpoint(paths, assignment.in_flight_tokens) for paths in servers]
