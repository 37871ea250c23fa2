"""One start of one server, from exec to the end of its last process.

Runs inside the supervisor. Starts SGLang in a session and process group of its own, writes what happens into the
record, and has ended all of its processes when it returns.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import psutil

from remote.model_digest import model_digest
from remote.servers.housekeeping import dump
from remote.servers.lifecycle import ending, key, logfile
from remote.servers.lifecycle.causes import End, explain, oom_kills
from remote.servers.lifecycle.peers import Link
from remote.servers.lifecycle.records import Record
from remote.servers.probing.holders import port_holders
from remote.servers.probing.ranks import RankWatch
from remote.servers.probing.ready import Readiness
from remote.shared.errors import HostError, RoostError
from remote.shared.messages.server import NODES_TOKEN, ProcessRef, SuperviseRequest
from remote.shared.paths import Workdir
from remote.shared.processes import members, session_leader
from remote.shared.supervised.pools import in_thread
from remote.shared.supervised.tasks import Tasks, start

DUMP_DIR_SECONDS = 1.0
"""The interval between two checks of the dump directory."""
MASK_SECONDS = 0.25
"""How long a key that SGLang printed may stay in the log, which only its owner can read."""


@dataclass(frozen=True)
class Verdict:
    """Why a server must end, or has ended."""

    cause: str = ""
    asked: bool = False
    """A person asked for the end."""
    crashed: bool = False
    """The server ended by itself, or lost a rank; its log tells the cause."""


class Life:
    """One start of the server in `record`.

    `stop` is set once a person asks for the end; `fault` has an exception once a part of the supervisor has failed.
    """

    def __init__(
        self, record: Record, order: SuperviseRequest, stop: asyncio.Event, fault: asyncio.Future[BaseException]
    ) -> None:
        self._fault = fault
        self._record = record
        self._order = order
        self._stop = stop
        self._spec = record.state.spec
        self._link: Link | None = None
        self._weights = ""

    async def run(self) -> None:
        """Start the server and watch it until it ends; the record then says `stopped` or `failed`, with the cause."""
        self._record.paths.grace.unlink(missing_ok=True)
        try:
            secrets = key.issue(self._record.paths, self._order.config, closes_admin=self._order.closes_admin)
        except OSError as error:
            self._record.change(status="failed", ended_at=time.time(), cause=f"Its key could not be written: {error}")
            return
        mask = key.Mask(Path(self._record.state.log), secrets)
        masking = start(_keep_masked(mask), "the masking of keys", self._broke, endless=True)
        try:
            await self._live(mask)
        finally:
            masking.cancel()
            mask.apply()
            key.withdraw(self._record.paths)
            self._record.paths.rendezvous.unlink(missing_ok=True)

    async def _live(self, mask: key.Mask) -> None:
        killed_before = oom_kills()
        try:
            await self._open_link()
            self._weights = await self._model_digest()
            process = await self._start()
        except (RoostError, OSError) as error:
            await self._close_link(f"it could not be started: {error}")
            self._record.change(status="failed", ended_at=time.time(), cause=f"It could not be started: {error}")
            return
        self._record.change(server=session_leader(process.pid), started_at=time.time())
        verdict = await self._until_end(process)
        mask.apply()  # the cause quotes the log
        if verdict.crashed:
            kills = oom_kills() - killed_before
            end = End(process.returncode, self._record.state.command, kills, verdict.cause, self._spec.gpus)
            await self._crashed(process, explain(Path(self._record.state.log), end))
        else:
            await self._ended(process, verdict)

    async def _model_digest(self) -> str:
        """Return the digest of the files that the server loads: a run compares it with what it was planned for."""
        workdir = Workdir(self._record.paths.root.parent.parent)
        return await in_thread(model_digest, Path(self._spec.model).expanduser(), workdir)

    async def _start(self) -> asyncio.subprocess.Process:
        state = self._record.state
        self._record.paths.rendezvous.unlink(missing_ok=True)  # of a start that was killed: its ranks are no more
        if state.capture is not None:
            dump.sweep(Path(state.capture.dump_dir))
        log = logfile.create(self._record.paths, Path(state.log))
        try:
            return await asyncio.create_subprocess_exec(
                *state.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._record.paths.root,
                env=self._order.env,
                start_new_session=True,
            )
        finally:
            os.close(log)

    async def _until_end(self, process: asyncio.subprocess.Process) -> Verdict:
        """Wait until the server is ready and then until it ends; returns the first verdict, in the order of `ends`.

        A watch that fails ends the server as well: nobody would learn of the end of an unwatched server.
        """
        try:
            headers = key.headers(self._record.paths)
            readiness = Readiness(self._spec.port, headers, self._record.state.capture)
            async with Tasks() as tasks:
                ready = tasks.start(self._ready(readiness), "the probe")
                ends = [
                    tasks.start(self._asked(), "the wait for a stop"),
                    tasks.start(_exited(process), "the wait for the process"),
                    tasks.start(self._peer_ended(), "the watch over the other nodes"),
                    tasks.start(_rank_died(process.pid), "the watch over the ranks"),
                    tasks.start(self._faulted(), "the watch over the supervisor"),
                    tasks.start(self._dumps_lost(), "the watch over the dump directory"),
                ]
                done, _ = await asyncio.wait(
                    {ready, *ends}, timeout=self._spec.ready_timeout_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    return Verdict(f"Not ready within {self._spec.ready_timeout_seconds:.0f} s: {readiness.seen}.")
                if ready in done:
                    if await self._model_digest() != self._weights:
                        return Verdict(f"The model's files in {self._spec.model} changed while they were loaded.")
                    self._record.change(
                        status="ready", ready_at=time.time(), canary=ready.result(), weights=self._weights
                    )
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                return next(end.result() for end in ends if end.done())
        except RoostError as error:
            return Verdict(str(error))
        except Exception as error:
            traceback.print_exc()  # to the supervisor's log
            return _unwatched(error)

    async def _asked(self) -> Verdict:
        await self._stop.wait()
        return Verdict(asked=True)

    async def _dumps_lost(self) -> Verdict:
        """Create the dump directory again whenever it vanishes; return if something else lies at its path."""
        state = self._record.state
        if state.capture is None:
            await asyncio.Event().wait()
        assert state.capture is not None
        directory = Path(state.capture.dump_dir)
        while True:
            await asyncio.sleep(DUMP_DIR_SECONDS)
            try:
                said = dump.keep(directory, state.mark)
            except HostError as error:
                return Verdict(f"Its dump directory was taken away. {error}")
            if said:
                self._record.change(trouble=f"{time.strftime('%H:%M:%S UTC', time.gmtime())}: {said}")

    def _broke(self, error: BaseException) -> None:
        if not self._fault.done():
            self._fault.set_result(error)

    async def _faulted(self) -> Verdict:
        return _unwatched(await asyncio.shield(self._fault))

    async def _peer_ended(self) -> Verdict:
        if self._link is None:
            await asyncio.Event().wait()
        assert self._link is not None
        end = await self._link.lost()
        return Verdict(f"The server spans hosts, and {end.cause}", asked=end.stopped)

    async def _ready(self, readiness: Readiness) -> str:
        """Wait until the server is ready and return a sentence on its canary ("" without one).

        If the server spans hosts, only rank 0 is asked: the other ranks answer no requests.
        """
        if self._link is not None:
            await self._link.wait_linked()
            if self._spec.node_rank:
                await self._link.wait_ready()
                return ""
        canary = await readiness.wait()
        self._check_listener()
        if self._link is not None:
            await self._link.say_ready()
        return canary

    def _check_listener(self) -> None:
        """Raise HostError if another process than this server listens on the port."""
        holders = port_holders(self._spec.port)
        ours = {process.pid for process in members(*self._handle())}
        if holders and not any(holder.process.pid in ours for holder in holders):
            raise HostError(f"Port {self._spec.port} is answered by {holders[0].describe()}, not by this server.")

    async def _crashed(self, process: asyncio.subprocess.Process, cause: str) -> None:
        """Record the crash at once, then end the processes that the server left."""
        self._record.change(status="failed", exit_code=process.returncode, ended_at=time.time(), cause=cause)
        await self._close_link(cause)
        left = await in_thread(ending.kill, *self._handle())
        self._record.change(exit_code=None if left else await process.wait())
        self._note_left(left)

    async def _ended(self, process: asyncio.subprocess.Process, verdict: Verdict) -> None:
        await self._close_link(verdict.cause, stopped=verdict.asked)
        left = await in_thread(ending.end, *self._handle(), self._grace_seconds())
        self._record.change(
            status="stopped" if verdict.asked else "failed",
            exit_code=None if left else await process.wait(),
            ended_at=time.time(),
            cause="" if verdict.asked else verdict.cause,
        )
        self._note_left(left)

    def _grace_seconds(self) -> float:
        """Return the grace period that `stop` wrote down, or the usual one if something else ends the server."""
        try:
            return float(self._record.paths.grace.read_text())
        except (OSError, ValueError):
            return ending.GRACE_SECONDS
        finally:
            self._record.paths.grace.unlink(missing_ok=True)

    def _handle(self) -> tuple[ProcessRef, str]:
        state = self._record.state
        assert state.server is not None
        return state.server, state.mark

    def _note_left(self, left: list[psutil.Process]) -> None:
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            self._record.change(cause=f"{self._record.state.cause} Still there after SIGKILL: {pids}.".strip())

    async def _open_link(self) -> None:
        if self._spec.nodes:
            self._link = Link(self._spec, self._order.env.get(NODES_TOKEN, ""))
            await self._link.open()

    async def _close_link(self, cause: str, *, stopped: bool = False) -> None:
        if self._link is not None:
            await self._link.close(cause, stopped=stopped)


def _unwatched(error: BaseException) -> Verdict:
    return Verdict(f"Its supervisor could no longer watch it: {type(error).__name__}: {error}.")


async def _exited(process: asyncio.subprocess.Process) -> Verdict:
    await process.wait()
    return Verdict(crashed=True)


async def _keep_masked(mask: key.Mask) -> None:
    while True:
        await asyncio.sleep(MASK_SECONDS)
        mask.apply()


async def _rank_died(leader: int) -> Verdict:
    return Verdict(await RankWatch(leader).death(), crashed=True)
