"""A workdir whose servers end with the test, and stand-in servers under a real, detached supervisor."""

from __future__ import annotations

import io
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hosts.practice import ports
from remote.context import Context
from remote.report import Report
from remote.servers.lifecycle import ending, logfile, records
from remote.servers.lifecycle.detach import start_supervisor
from remote.servers.lifecycle.stopping import stop_server
from remote.shared.messages.server import ServerSpec, ServerState, SuperviseRequest
from remote.shared.paths import Workdir
from remote.shared.processes import MARK, find

STANDIN = Path(__file__).with_name("standin.py")
DEADLINE_SECONDS = 60.0


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    """A verb's context whose servers are ended after the test."""
    made = Context(Workdir(tmp_path / "a'; echo foo"), Report(io.StringIO()), operator="tester@laptop")
    yield made
    for name in records.names(made.workdir):
        state = records.load(made.workdir.server(name))
        assert state is not None
        stop_server(made.workdir.server(name), state, grace_seconds=2.0)


@pytest.fixture
def free_port() -> int:
    return ports.free_port()


@pytest.fixture
def prepare(context: Context, free_port: int) -> Callable[..., ServerState]:
    """Write the record of a stand-in that is about to start, as `serve` does."""

    def make(*options: str, name: str = "main", **spec: object) -> ServerState:
        paths = context.workdir.server(name)
        order = ServerSpec(
            name=name, port=free_port, **{"model": "/none", "ready_timeout_seconds": DEADLINE_SECONDS, **spec}
        )
        start = logfile.next_start(paths, order)
        state = ServerState(
            name=name,
            mode="serve",
            status="starting",
            port=free_port,
            model=order.model,
            command=[sys.executable, str(STANDIN), f"--config={paths.config}", f"--port={free_port}", *options],
            log=str(logfile.log_path(paths, order, start)),
            start=start,
            mark=f"{paths.root}#{secrets.token_hex(8)}",
            spec=order,
            started_at=time.time(),
        )
        records.save(paths, state)
        return state

    return make


@pytest.fixture
def start(context: Context, prepare: Callable[..., ServerState]) -> Callable[..., ServerState]:
    """Start a stand-in under a real supervisor."""

    def begin(*options: str, name: str = "main", **spec: object) -> ServerState:
        state = prepare(*options, name=name, **spec)
        start_supervisor(state, SuperviseRequest(name=name, env={**os.environ, MARK: state.mark}), context)
        return state

    return begin


@pytest.fixture
def until(context: Context) -> Callable[..., ServerState]:
    """Wait for a server's record to have one of these statuses."""

    def wait(*statuses: str, name: str = "main") -> ServerState:
        def state() -> ServerState:
            loaded = records.load(context.workdir.server(name))
            assert loaded is not None
            return loaded

        assert ending.wait_until(lambda: state().status in statuses, DEADLINE_SECONDS), state()
        if state().status in ("failed", "stopped") and state().restart_at is None:
            assert ending.wait_until(lambda: find(state().supervisor) is None, DEADLINE_SECONDS)
        return state()

    return wait
