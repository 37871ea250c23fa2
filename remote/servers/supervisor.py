"""The verb `supervise`: one detached process a server, which starts it, awaits it, records its end, starts it again.

Runs on the host, started by `serve` in a session of its own; outlives the laptop and the SSH connection. It is the only
writer of `state.json` while it lives. Its stdout carries nothing that anyone reads; a fault of its own goes to
`supervisor.log`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

import psutil

from remote.context import Context
from remote.errors import HostError, RoostError
from remote.messages.server import ProcessRef, ServerState, SuperviseRequest
from remote.paths import ServerPaths
from remote.servers import dump, ending, logfile, records
from remote.servers.causes import End, explain, oom_kills
from remote.servers.processes import is_zombie, reference
from remote.servers.ready import Readiness

PR_SET_CHILD_SUBREAPER = 36
BACKOFF_FIRST_SECONDS = 5.0
BACKOFF_CAP_SECONDS = 300.0
STABLE_SECONDS = 600.0
"""A server that was ready for so long starts its backoff anew when it crashes."""
MOST_FAILURES = 10
"""Starts in a row that never became ready, after which the supervisor gives up."""
REAP_SECONDS = 1.0


def supervise(request: SuperviseRequest, context: Context) -> ServerState:
    """Run the server whose record says `starting` until it is stopped or ends; returns its last state."""
    paths = context.workdir.server(request.name)
    state = records.load(paths)
    if state is None or state.status != "starting":
        raise HostError(f"There is no server {request.name!r} to start; `serve` writes its record first.")
    supervisor = Supervisor(paths, state, request.env)
    try:
        asyncio.run(supervisor.run())
    except BaseException as error:
        supervisor.change(status="failed", cause=f"The supervisor itself failed: {error!r}", ended_at=time.time())
        raise
    return supervisor.state


class Supervisor:
    """One server's life, start after start."""

    def __init__(self, paths: ServerPaths, state: ServerState, environ: dict[str, str]) -> None:
        self.state = state
        self._paths = paths
        self._environ = environ
        self._stop = asyncio.Event()
        self._failures = 0

    def change(self, **values: object) -> None:
        """Change the record and write it, whole."""
        self.state = self.state.model_copy(update=values)
        records.save(self._paths, self.state)

    async def run(self) -> None:
        """Start, and start again where the record asks for it and the end was a crash."""
        _adopt_orphans()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        reaper = asyncio.create_task(_reap_orphans(self))
        try:
            self.change(supervisor=reference(os.getpid()))
            await self._live()
            while self.state.status == "failed" and await self._waits_for_restart():
                await self._live()
        finally:
            reaper.cancel()

    async def _waits_for_restart(self) -> bool:
        """Wait out the backoff; False where there is no further start."""
        was_ready = self.state.ready_at is not None
        if not self.state.spec.restart or not (was_ready or self.state.restarts):
            return False
        stable = was_ready and (self.state.ended_at or 0.0) - (self.state.ready_at or 0.0) > STABLE_SECONDS
        self._failures = 1 if stable else self._failures + 1
        if self._failures > MOST_FAILURES:
            return False
        seconds = backoff_seconds(self._failures)
        self.change(restart_at=time.time() + seconds)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
        if self._stop.is_set():
            self.change(status="stopped", restart_at=None)
            return False
        start = logfile.next_start(self._paths, self.state.spec)
        self.change(
            status="starting",
            start=start,
            log=str(logfile.log_path(self._paths, self.state.spec, start)),
            server=None,
            restarts=self.state.restarts + 1,
            restart_at=None,
            ready_at=None,
            ended_at=None,
            exit_code=None,
            cause="",
        )
        return True

    async def _live(self) -> None:
        """One start, from exec to the last of its processes."""
        started, killed_before = time.time(), oom_kills()
        process = await self._start()
        self.change(server=reference(process.pid), started_at=started)
        exited = asyncio.create_task(process.wait())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            cause = await self._until_end(exited, stopped)
        finally:
            stopped.cancel()
        asked = self._stop.is_set()
        if exited.done() and not asked:
            end = End(exited.result(), self.state.command, oom_kills() - killed_before)
            cause = explain(Path(self.state.log), end)
            self.change(status="failed", exit_code=exited.result(), ended_at=time.time(), cause=cause)
            left = await asyncio.to_thread(ending.kill, *self._handle())
        else:
            left = await asyncio.to_thread(ending.end, *self._handle())
            code = await exited if not left else None
            self.change(
                status="stopped" if asked else "failed",
                exit_code=code,
                ended_at=time.time(),
                cause="" if asked else cause,
            )
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            self.change(cause=f"{self.state.cause} Still there after SIGKILL: {pids}.".strip())

    def _handle(self) -> tuple[ProcessRef, str]:
        assert self.state.server is not None
        return self.state.server, self.state.mark

    async def _start(self) -> asyncio.subprocess.Process:
        capture = self.state.capture
        if capture is not None:
            dump.sweep(Path(capture.dump_dir))
        log = logfile.create(self._paths, Path(self.state.log))
        try:
            return await asyncio.create_subprocess_exec(
                *self.state.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._paths.root,
                env=self._environ,
                start_new_session=True,
            )
        finally:
            os.close(log)

    async def _until_end(self, exited: asyncio.Task[int], stopped: asyncio.Task[bool]) -> str:
        """Await ready, then the end; returns why a server that still runs has to go, "" otherwise."""
        spec = self.state.spec
        readiness = Readiness(spec.port, self.state.capture)
        ready = asyncio.create_task(readiness.wait())
        try:
            await asyncio.wait(
                {exited, stopped, ready},
                timeout=spec.ready_timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if exited.done() or stopped.done():
                return ""
            if not ready.done():
                return f"Not ready within {spec.ready_timeout_seconds:.0f} s: {readiness.seen}."
            ready.result()
        except RoostError as error:
            return str(error)
        finally:
            ready.cancel()
        self.change(status="ready", ready_at=time.time())
        await asyncio.wait({exited, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return ""


def backoff_seconds(failures: int) -> float:
    """Pause before the next start after so many failures in a row: 5 s, doubled each time, at most 5 min."""
    return float(min(BACKOFF_CAP_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** (failures - 1)))


def _adopt_orphans() -> None:
    """Have the kernel give us, not PID 1, what a dead SGLang process leaves behind: nothing of it escapes our sight."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


async def _reap_orphans(supervisor: Supervisor) -> None:
    """Read the exit codes of adopted children, so that no zombie stays; the server is awaited elsewhere."""
    while True:
        await asyncio.sleep(REAP_SECONDS)
        server = supervisor.state.server
        if server is None:
            continue
        for child in psutil.Process().children():
            if child.pid != server.pid and is_zombie(child):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)
