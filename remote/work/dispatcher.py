"""The dispatcher: keeps this host's servers busy with a run's open records until none is left.

Runs on the host in its own process, under the run's lock. One event loop sends requests and reads answers; threads copy
and commit. While a condition holds the run back, no attempt starts, and records in flight finish. Subclasses define an
attempt at a record and its needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Executor

import aiohttp

from remote.report import Report
from remote.shared.errors import HostError, RoostError
from remote.shared.messages.extract import ExtractorState, ExtractorStatus
from remote.shared.paths import RunPaths, Workdir
from remote.shared.supervised.tasks import Tasks
from remote.work.assignment import Work
from remote.work.backlog import Backlog, Task
from remote.work.client import Client
from remote.work.commit import Committer
from remote.work.conditions import Conditions
from remote.work.disk import DiskWriter
from remote.work.endpoint import Endpoint, endpoints
from remote.work.failures import TRY_ERRORS, AttemptError, ServerGoneError
from remote.work.holding import Holding
from remote.work.hooks import Hooks
from remote.work.judgement import DEATHS_ALONE, Judgement
from remote.work.ledger import Ledger, Row
from remote.work.progress import Lack, Progress
from remote.work.session import Opened, counted

TICK_SECONDS = 0.2


class Dispatcher(Hooks, ABC):
    """One session of one run's epoch on this host."""

    mode: str
    """The inventory's mode for servers of this work, as in `inv serve --mode`."""

    def __init__(self, workdir: Workdir, paths: RunPaths, holding: Holding, opened: Opened, report: Report) -> None:
        self._workdir, self._paths, self._opened, self._report = workdir, paths, opened, report
        self._holding, self._work = holding, holding.work
        assignment = self._work.assignment
        self._assignment = assignment
        self._endpoints = endpoints(assignment, [workdir.server(name) for name in assignment.server_names])
        self._conditions = Conditions(paths, assignment)
        self._backlog = Backlog(self.ordered(opened.positions))
        self._progress = Progress(paths.state, assignment.run, assignment.epoch, opened.counts, assignment.task)
        self._flying: dict[asyncio.Task[None], Task] = {}
        self._finished: Mapping[int, object] = {}
        """Records that are not begun, because an earlier epoch finished them or because they were refused."""
        self._ending = False
        self._observed_at = float("-inf")
        self._lacks_room = False
        """Whether a record waits only for room on the disk or RAM disk; set by `with_room`."""
        self._unready_since: float | None = None
        self._waits_until = ""
        """The time of day, by this host's clock, until which the run waits for a server."""

    @classmethod
    @abstractmethod
    def refusals(cls, work: Work) -> list[tuple[int, str]]:
        """Return the positions of records that no server can take, each with the reason."""

    @abstractmethod
    async def attempt(self, task: Task, endpoint: Endpoint) -> Row:
        """Run one attempt up to its committed row. Its tokens return to `endpoint` when the server has processed them.

        Raises one of `TRY_ERRORS` for a failed attempt, RoostError for a fault of the host.
        """

    @abstractmethod
    async def accept(self, endpoint: Endpoint, client: Client) -> None:
        """Accept a server that became ready; raises RoostError if it does not fit this run."""

    @abstractmethod
    def tokens(self, position: int) -> int:
        """Return how many tokens of a server's budget the record uses during an attempt."""

    @abstractmethod
    def size_bytes(self, position: int) -> int:
        """Return the approximate size of the record on the disk."""

    async def run(self) -> ExtractorState:
        """Work until no record is open, or until a stop is requested; raises RoostError if it cannot continue."""
        self._changed = asyncio.Event()
        self._committer = Committer(self._paths.ledger, f"`inv {self._assignment.task}` resumes.")
        self._judgement = Judgement(
            self._work, self._paths, self._backlog, self._committer, self._progress, self._report
        )
        try:
            with Ledger(self._paths.ledger) as ledger:
                self._finished = ledger.states()
            async with Tasks() as self._tasks:
                self._tasks.start(self._progress.run(), "the progress file", endless=True)
                await self.begin()
                await self._dispatch()
            return await self._leave("stopped" if self._ending else "complete")
        except Exception as error:
            told = error if isinstance(error, RoostError) else _unforeseen(error)
            await self._leave("failed", str(told))
            raise told from error
        finally:
            self.close()
            self._progress.close()
            self._committer.close()

    def stop(self) -> None:
        """Begin no further record, and end when the records in flight have finished."""
        self._ending = True
        self._changed.set()

    def leaving(self) -> bool:
        """Return whether the session is ending and only finishes records in flight."""
        return self._ending or self._judgement.fatal is not None

    def disk_writer(self, pool: Executor) -> DiskWriter:
        """Return the writer of this session's records, which uses the threads of `pool`."""
        return DiskWriter(pool, lambda size: self._conditions.free_bytes() > size, self.leaving)

    async def _dispatch(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as http:
            while not self._is_over():
                self._changed.clear()
                await self._observe(http)
                self._lacks_room = False
                if not self.leaving() and self._may_send():
                    self._send()
                self._progress.wait_for_room(self._lacks_room)
                self._progress.in_flight(len(self._flying))
                await self._wait()
            await self.at_last()
        if self._judgement.fatal is not None:
            raise self._judgement.fatal

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), TICK_SECONDS)
        except asyncio.TimeoutError:
            return

    def _is_over(self) -> bool:
        """Return whether no record is in flight or left to send, after taking up records that were re-queued."""
        if self._flying:
            return False
        if self.leaving():
            return True
        if not len(self._backlog):
            self.before_records_come_again()
            with Ledger(self._paths.ledger) as ledger:
                self._finished = ledger.states()
                self._backlog.add(self.ordered(self._holding.open(self._finished)))
                self._progress.state.counts = counted(ledger, self._holding.assignment())
            if not len(self._backlog):
                self._begin_chunk()
        return not len(self._backlog)

    def _begin_chunk(self) -> None:
        """Claim further records, which can then no longer go to another host."""
        positions = self._holding.begin(self._finished)
        while self.takes_all and (more := self._holding.begin(self._finished)):
            positions += more
        self._backlog.add(self.ordered(positions))

    async def _observe(self, http: aiohttp.ClientSession) -> None:
        """Check for a person's request, a newer epoch, and servers that started or ended."""
        if time.monotonic() - self._observed_at < self.observe_seconds:
            return
        self._observed_at = time.monotonic()
        epoch = self._conditions.superseded_by()
        if epoch is not None or self._conditions.wish() == "stop":
            self._ending = True
        for endpoint in self._endpoints:
            endpoint.refresh()
            if endpoint.is_new and not endpoint.lacks_dump_dir:
                await self._welcome(endpoint, http)
        self.look()

    async def _welcome(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> None:
        try:
            seconds = self._assignment.request_timeout_seconds
            client = Client(http, endpoint.state.port, endpoint.headers, seconds)
            await self.accept(endpoint, client)
        except (ServerGoneError, AttemptError):
            return  # it just ended, or is not ready yet: the next call finds out
        except RoostError as error:
            self._judgement.end(error)
            return
        endpoint.welcome(client)

    def _may_send(self) -> bool:
        """Return True if nothing holds the run back; otherwise set the status with the cause and return False."""
        now = time.monotonic()
        if self._conditions.wish() == "pause":
            return self._say("paused", lacks="paused")
        task = self._backlog.peek(now)
        size = self.size_bytes(task.position) if task else 0
        under_way = sum(self.size_bytes(flying.position) for flying in self._flying.values())
        if lacking := self._conditions.lacking_bytes(under_way + size):
            return self._say(
                "waiting", f"The disk lacks {_gigabytes(lacking)} in addition to the free space to keep.", "disk"
            )
        if not any(endpoint.ready for endpoint in self._endpoints):
            return self._without_server(now)
        self._unready_since = None
        if self.hindered(size):
            return False
        self._say("running")
        return True

    def _without_server(self, now: float) -> bool:
        if self._unready_since is None:
            self._unready_since = now
            self._waits_until = time.strftime(
                "%H:%M:%S", time.localtime(time.time() + self._assignment.server_wait_seconds)
            )
        start = f"`inv serve --host {self._assignment.host} --mode {self.mode}`"
        why = " ".join(endpoint.why_not_ready() for endpoint in self._endpoints)
        if now - self._unready_since > self._assignment.server_wait_seconds:
            seconds = f"{self._assignment.server_wait_seconds:g} s"
            remedy = f"Start the servers with {start}; then `inv {self._assignment.task}` resumes the run."
            self._judgement.end(HostError(f"No server was ready for {seconds}. {why}", remedy=remedy))
        return self._say("waiting", f"{why} Start it with {start}; the run waits until {self._waits_until}.", "server")

    def _say(self, status: ExtractorStatus, cause: str = "", lacks: Lack = "") -> bool:
        if self._progress.say(status, cause, lacks):
            self._report.progress(cause or status)
        return False

    def _send(self) -> None:
        """Start attempts while a server has room for the next record."""
        while True:
            if not self._backlog.has_fresh:
                self._begin_chunk()
            task = self._backlog.peek(time.monotonic())
            endpoint = self._choose(task) if task is not None else None
            if endpoint is None:
                return
            self._start(self._backlog.take(time.monotonic()), endpoint)

    def _choose(self, task: Task) -> Endpoint | None:
        """Return the ready server with the fewest tokens in flight that admits `task`, or None."""
        length = self.tokens(task.position)
        ready = [endpoint for endpoint in self._endpoints if endpoint.ready and endpoint.admits(length)]
        if task.deaths >= DEATHS_ALONE:
            ready = [endpoint for endpoint in ready if endpoint.requests == 0]
        free = self.with_room(ready, task)
        return min(free, key=lambda endpoint: endpoint.tokens.used, default=None)

    def _start(self, task: Task, endpoint: Endpoint) -> None:
        endpoint.begin(self.tokens(task.position), alone=task.deaths >= DEATHS_ALONE)
        self.begun(task, endpoint)
        index = int(self._work.index[task.position])
        trial = self._tasks.start(self._try(task, endpoint), f"try {task.attempt} of record {index}")
        self._flying[trial] = task

        def landed(_: asyncio.Task[None]) -> None:
            del self._flying[trial]
            endpoint.end()
            self.ended(task, endpoint)
            self._changed.set()

        trial.add_done_callback(landed)

    async def _try(self, task: Task, endpoint: Endpoint) -> None:
        life = endpoint.life
        try:
            self._judgement.succeeded(await self.attempt(task, endpoint))
        except TRY_ERRORS as error:
            await self._judgement.failed(task, endpoint, life, error)
        except RoostError as error:
            self._judgement.end(error)
        except Exception as error:
            traceback.print_exc()  # to the run's log
            what = f"The attempt met an error in Roost itself ({type(error).__name__}: {error})."
            await self._judgement.failed(task, endpoint, life, AttemptError(what))

    async def _leave(self, status: ExtractorStatus, cause: str = "") -> ExtractorState:
        self._progress.say(status, cause)
        with contextlib.suppress(OSError):  # the end and its cause are reported even if they cannot be written
            await self._progress.write()
        counts = self._progress.state.counts
        self._report.progress(
            f"{status}: {counts.done + counts.freed} of {counts.assigned} records done,"
            f" {counts.quarantined} quarantined{self.last_word()}"
        )
        return self._progress.state


def _unforeseen(error: Exception) -> HostError:
    return HostError(
        f"The detached work met an error in Roost itself and ended: {type(error).__name__}: {error}.",
        remedy="`inv logs --run` shows more. The same command resumes the run.",
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
