"""The verb `supervise`: a detached process that starts one server, watches it, records its end and restarts it.

Runs on the host, started by `serve` in a session of its own; outlives the laptop and the SSH connection. While it
lives, it is the only writer of `state.json`. Nobody reads its stdout; its own faults go to `supervisor.log`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time

import psutil

from remote.context import Context
from remote.servers.lifecycle import logfile, records
from remote.servers.lifecycle.life import Life
from remote.servers.lifecycle.records import Record
from remote.shared.errors import HostError
from remote.shared.messages.server import ServerState, SuperviseRequest
from remote.shared.paths import ServerPaths
from remote.shared.processes import is_zombie, reference
from remote.shared.supervised import tasks

PR_SET_CHILD_SUBREAPER = 36
BACKOFF_FIRST_SECONDS = 5.0
BACKOFF_CAP_SECONDS = 300.0
STABLE_SECONDS = 600.0
"""After a crash, the backoff starts from the beginning if the server had been ready for this long."""
MOST_FAILURES = 10
"""The supervisor gives up after this many starts in a row that never became ready."""
REAP_SECONDS = 1.0


def supervise(request: SuperviseRequest, context: Context) -> ServerState:
    """Run the server whose record says `starting` until it is stopped or ends, and return its last state."""
    paths = context.workdir.server(request.name)
    state = records.load(paths)
    if state is None or state.status != "starting":
        raise HostError(f"There is no server {request.name!r} to start; `serve` writes its record first.")
    supervisor = Supervisor(paths, state, request)
    try:
        asyncio.run(supervisor.run())
    except BaseException as error:
        cause = f"The supervisor itself failed: {error!r}"
        supervisor.record.change(status="failed", cause=cause, ended_at=time.time())
        raise
    return supervisor.record.state


class Supervisor:
    """Starts one server, and starts it again after crashes."""

    def __init__(self, paths: ServerPaths, state: ServerState, order: SuperviseRequest) -> None:
        self.record = Record(paths, state)
        self.stop = asyncio.Event()
        self._order = order
        self._failures = 0

    async def run(self) -> None:
        """Start the server; start it again after each crash if the record asks for restarts."""
        _adopt_orphans()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop.set)
        fault: asyncio.Future[BaseException] = loop.create_future()
        reaper = tasks.start(_reap_orphans(self.record), "the reaping of orphans", fault.set_result, endless=True)
        try:
            self.record.change(supervisor=reference(os.getpid()))
            await Life(self.record, self._order, self.stop, fault).run()
            while self.record.state.status == "failed" and await self._waits_for_restart():
                await Life(self.record, self._order, self.stop, fault).run()
        finally:
            reaper.cancel()

    async def _waits_for_restart(self) -> bool:
        """Wait for the end of the backoff and return True; return False if there is no further start."""
        state = self.record.state
        was_ready = state.ready_at is not None
        if not state.spec.restart or not (was_ready or state.restarts):
            return False
        stable = was_ready and (state.ended_at or 0.0) - (state.ready_at or 0.0) > STABLE_SECONDS
        self._failures = 1 if stable else self._failures + 1
        if self._failures > MOST_FAILURES:
            return False
        seconds = backoff_seconds(self._failures)
        self.record.change(restart_at=time.time() + seconds)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)
        if self.stop.is_set():
            self.record.change(status="stopped", restart_at=None)
            return False
        self._begin_again()
        return True

    def _begin_again(self) -> None:
        """Reset the record for a new start, with a new log and nothing of the last end."""
        state = self.record.state
        start = logfile.next_start(self.record.paths, state.spec)
        self.record.change(
            status="starting",
            start=start,
            log=str(logfile.log_path(self.record.paths, state.spec, start)),
            server=None,
            restarts=state.restarts + 1,
            restart_at=None,
            ready_at=None,
            ended_at=None,
            exit_code=None,
            cause="",
            canary="",
            trouble="",
        )


def backoff_seconds(failures: int) -> float:
    """Return the pause after `failures` failures in a row: 5 s, doubled each time, at most 5 min."""
    return float(min(BACKOFF_CAP_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** (failures - 1)))


def _adopt_orphans() -> None:
    """Become the parent of orphans (instead of PID 1), so that children of a dead SGLang process stay known."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


async def _reap_orphans(record: Record) -> None:
    """Reap adopted children, so that no zombie stays; the server itself is awaited elsewhere."""
    while True:
        await asyncio.sleep(REAP_SECONDS)
        server = record.state.server
        if server is None:
            continue
        for child in psutil.Process().children():
            with contextlib.suppress(ChildProcessError, psutil.Error):
                if child.pid != server.pid and is_zombie(child):
                    os.waitpid(child.pid, os.WNOHANG)
