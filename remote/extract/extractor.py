"""The extractor: keeps this host's servers saturated with a run's open records until none is left.

Runs on the host in a process of its own, under the run's lock. One event loop dispatches and listens; threads copy
and commit. It starts nothing new while something holds it back, and always lets what is in flight finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from pathlib import Path

import aiohttp

from remote.extract.assignment import Work
from remote.extract.attempt import Harvest
from remote.extract.backlog import Backlog, Task
from remote.extract.canaries import Canaries
from remote.extract.client import AttemptError, Client
from remote.extract.commit import Committer
from remote.extract.conditions import CAUSE_BYTES, Conditions, room_bytes
from remote.extract.endpoint import Budget, Endpoint, endpoints
from remote.extract.judgement import DEATHS_ALONE, TRY_ERRORS, Judgement
from remote.extract.ledger import Ledger
from remote.extract.leftovers import Leftovers
from remote.extract.parity import Parity
from remote.extract.progress import Progress
from remote.extract.session import Opened, check_server, counted, open_positions
from remote.extract.watch import Watch
from remote.report import Report
from remote.servers.housekeeping.dump import likely_cause
from remote.shared.errors import HostError, RoostError
from remote.shared.messages.extract import ExtractorState, ExtractorStatus
from remote.shared.paths import RunPaths, Workdir
from remote.shared.shard.sessions import withdraw
from remote.shared.supervised.tasks import Tasks
from remote.shared.supervised.threads import Pool

TICK_SECONDS = 0.2
SWEEP_SECONDS = 5.0
GONE_SECONDS = 15.0
"""A supervisor that lives makes a dump directory again within a second or two."""


class Extractor:
    """One session of one run's epoch on this host."""

    def __init__(self, workdir: Workdir, paths: RunPaths, work: Work, opened: Opened, report: Report) -> None:
        self._paths, self._work, self._opened, self._report = paths, work, opened, report
        assignment = work.assignment
        self._assignment = assignment
        self._endpoints = endpoints(assignment, [workdir.server(name) for name in assignment.server_names])
        self._conditions = Conditions(paths, assignment)
        self._backlog = Backlog(opened.positions)
        self._progress = Progress(paths.state, assignment.run, assignment.epoch, opened.counts)
        self._dumps: dict[Path, Budget] = {}
        self._leftovers = Leftovers(workdir, paths, opened.nonces | {opened.nonce}, opened.nonce)
        self._flying: dict[asyncio.Task[None], tuple[Task, str]] = {}
        self._ending = False
        self._lacks_room = False
        """A record could be sent if a RAM disk had room for its dump."""
        self._unready_since: float | None = None
        self._gone_since: float | None = None
        self._waits_until = ""
        """By this host's clock, as a person reads it."""
        self._swept_at = 0.0

    async def run(self) -> ExtractorState:
        """Extract until nothing is open, or until told to stop; raises RoostError if it cannot go on."""
        self._changed = asyncio.Event()
        committer = Committer(self._paths.ledger)
        pool = Pool(self._assignment.workers, "collector")
        parity = Parity(self._assignment.identity.final)
        try:
            return await self._session(committer, pool, parity)
        finally:
            for directory in self._dumps:
                withdraw(directory, self._opened.nonce)
            pool.shutdown(cancel_futures=True)
            parity.close()
            self._progress.close()
            committer.close()

    async def _session(self, committer: Committer, pool: Pool, parity: Parity) -> ExtractorState:
        """Dispatch until it is over. Tries, look-outs and canaries are tasks of the block: an error in one ends it."""
        watch = Watch()
        self._harvest = Harvest(
            work=self._work,
            paths=self._paths,
            nonce=self._opened.nonce,
            watch=watch,
            committer=committer,
            pool=pool,
            parity=parity,
            band=self._opened.band,
            has_room=lambda size: self._conditions.free_bytes() > size,
            leaving=lambda: self._ending or self._judgement.fatal is not None,
        )
        self._judgement = Judgement(self._work, self._paths, self._backlog, committer, self._progress, self._report)
        try:
            async with Tasks() as self._tasks:
                self._canaries = Canaries(self._tasks)
                self._tasks.start(watch.run(), "the watch for dumps", endless=True)
                self._tasks.start(self._progress.run(), "the progress file", endless=True)
                await self._dispatch()
            return await self._leave("stopped" if self._ending else "complete")
        except Exception as error:
            told = error if isinstance(error, RoostError) else _unforeseen(error)
            await self._leave("failed", str(told))
            raise told from error

    def stop(self) -> None:
        """Take no further record, and end once what is in flight has finished."""
        self._ending = True
        self._changed.set()

    async def _dispatch(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as http:
            while not self._is_over():
                self._changed.clear()
                self._observe(http)
                self._lacks_room = False
                if not self._ending and self._judgement.fatal is None and self._may_send():
                    self._send()
                self._progress.wait_for_room(self._lacks_room)
                self._progress.in_flight(len(self._flying))
                await self._wait()
            await self._canaries.finish()
            self._find_dumps()
            self._sweep()
        self._hear_canaries()
        if self._judgement.fatal is not None:
            raise self._judgement.fatal

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), TICK_SECONDS)
        except asyncio.TimeoutError:
            return

    def _is_over(self) -> bool:
        """Nothing in flight and nothing to send; records that were re-queued meanwhile are taken up."""
        if self._flying:
            return False
        if self._ending or self._judgement.fatal is not None:
            return True
        if not len(self._backlog):
            self._sweep()  # a record that is tried anew in this session comes under the ids that it had
            with Ledger(self._paths.ledger) as ledger:
                self._backlog.add(open_positions(ledger, self._work))
                self._progress.state.counts = counted(ledger, self._work)
        return not len(self._backlog)

    def _observe(self, http: aiohttp.ClientSession) -> None:
        """Take in what changed outside: wishes, a newer epoch, servers that came and went."""
        epoch = self._conditions.superseded_by()
        if epoch is not None or self._conditions.wish() == "stop":
            self._ending = True
        for endpoint in self._endpoints:
            endpoint.refresh()
            if endpoint.is_new and not endpoint.lacks_dump_dir:
                self._welcome(endpoint, http)
            self._canaries.send_where_due(endpoint)
        self._hear_canaries()
        if time.monotonic() - self._swept_at > SWEEP_SECONDS:
            self._sweep()

    def _hear_canaries(self) -> None:
        if self._canaries.wrong is not None:
            self._judgement.end(self._canaries.wrong)
        self._progress.state.canaries_passed = self._canaries.passed

    def _welcome(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> None:
        """A server became ready: is its capture the run's?"""
        try:
            _, headers = endpoint.capture, endpoint.headers
            endpoint.register(self._opened.nonce)
            with Ledger(self._paths.ledger) as ledger:
                check_server(ledger, self._assignment.run, self._assignment.identity, endpoint.state)
        except RoostError as error:
            self._judgement.end(error)
            return
        client = Client(http, endpoint.state.port, headers, self._assignment.request_timeout_seconds)
        endpoint.welcome(client)
        budget = self._dumps.setdefault(endpoint.dump_dir, Budget(0))
        budget.limit = endpoint.high_water_bytes
        self._sweep()

    def _may_send(self) -> bool:
        """Whether nothing holds the run back; says what does where something does."""
        now = time.monotonic()
        if self._conditions.wish() == "pause":
            return self._say("paused")
        task = self._backlog.peek(now)
        size = self._harvest.size_bytes(task.position) if task else 0
        under_way = sum(budget.used for budget in self._dumps.values())
        if lacking := self._conditions.lacking_bytes(under_way + size):
            return self._say("waiting", f"The disk lacks {_gigabytes(lacking)} above the free space to keep.")
        if not any(endpoint.ready for endpoint in self._endpoints):
            return self._without_server(now)
        self._unready_since = None
        if gone := [endpoint for endpoint in self._endpoints if endpoint.lacks_dump_dir]:
            return self._without_dump_dir(gone[0], now)
        self._register_again()
        if starved := self._starved(size):
            return False if self._flying else self._say("waiting", starved)
        self._say("running")
        return True

    def _starved(self, size: int) -> str:
        """Why no dump of `size` bytes finds room in any RAM disk; "" where one does."""
        full = [one.dump_dir for one in self._endpoints if one.ready and room_bytes(one.dump_dir) < size + CAUSE_BYTES]
        if len(full) < sum(endpoint.ready for endpoint in self._endpoints):
            return ""
        return f"The RAM disk of {full[0]} has no room for the next record's dump."

    def _without_server(self, now: float) -> bool:
        if self._unready_since is None:
            self._unready_since = now
            self._waits_until = time.strftime(
                "%H:%M:%S", time.localtime(time.time() + self._assignment.server_wait_seconds)
            )
        start = f"`inv serve --host {self._assignment.host} --mode extract`"
        why = " ".join(endpoint.why_not_ready() for endpoint in self._endpoints)
        if now - self._unready_since > self._assignment.server_wait_seconds:
            seconds = f"{self._assignment.server_wait_seconds:g} s"
            remedy = f"{start} starts them; then `inv extract` resumes."
            self._judgement.end(HostError(f"No server was ready for {seconds}. {why}", remedy=remedy))
        return self._say("waiting", f"{why} Start it with {start}; the run waits until {self._waits_until}.")

    def _register_again(self) -> None:
        """A dump directory that was made again does not know this session yet."""
        if self._gone_since is None:
            return
        self._gone_since = None
        for endpoint in self._endpoints:
            if endpoint.ready:
                endpoint.register(self._opened.nonce)

    def _without_dump_dir(self, endpoint: Endpoint, now: float) -> bool:
        """The server's supervisor makes the directory again within seconds; a run does not wait for longer."""
        self._gone_since = self._gone_since or now
        why = f"The dump directory {endpoint.dump_dir} of the server {endpoint.name!r} vanished."
        if now - self._gone_since > GONE_SECONDS:
            remedy = "`inv restart` makes it again; then `inv extract` resumes. `inv doctor` tells what removes it."
            why = f"{why} Nobody made it again within {GONE_SECONDS:.0f} s. {likely_cause(endpoint.dump_dir)}"
            self._judgement.end(HostError(why, remedy=remedy))
        return self._say("waiting", why)

    def _say(self, status: ExtractorStatus, cause: str = "") -> bool:
        if self._progress.say(status, cause):
            self._report.progress(cause or status)
        return False

    def _send(self) -> None:
        """Start tries while a server has room for the next record."""
        while (task := self._backlog.peek(time.monotonic())) is not None:
            endpoint = self._choose(task)
            if endpoint is None:
                return
            self._start(self._backlog.take(time.monotonic()), endpoint)

    def _choose(self, task: Task) -> Endpoint | None:
        """The ready server with the fewest tokens in flight that admits `task`."""
        length, size = len(self._work.tokens(task.position)), self._harvest.size_bytes(task.position)
        ready = [endpoint for endpoint in self._endpoints if endpoint.ready and endpoint.admits(length)]
        if task.deaths >= DEATHS_ALONE:
            ready = [endpoint for endpoint in ready if endpoint.requests == 0]
        free = [
            endpoint
            for endpoint in ready
            if self._dumps[endpoint.dump_dir].admits(size) and room_bytes(endpoint.dump_dir) >= size + CAUSE_BYTES
        ]
        self._lacks_room = self._lacks_room or bool(ready and not free)
        return min(free, key=lambda endpoint: endpoint.tokens.used, default=None)

    def _start(self, task: Task, endpoint: Endpoint) -> None:
        size = self._harvest.size_bytes(task.position)
        endpoint.begin(len(self._work.tokens(task.position)), alone=task.deaths >= DEATHS_ALONE)
        budget = self._dumps[endpoint.dump_dir]
        budget.take(size)
        rid = self._harvest.rid(task)
        trial = self._tasks.start(self._try(task, endpoint), f"the try {rid}")
        self._flying[trial] = (task, rid)

        def landed(_: asyncio.Task[None]) -> None:
            del self._flying[trial]
            endpoint.end()
            budget.give(size)
            self._changed.set()

        trial.add_done_callback(landed)

    async def _try(self, task: Task, endpoint: Endpoint) -> None:
        life = endpoint.life
        try:
            self._judgement.succeeded(await self._harvest.attempt(task, endpoint))
        except TRY_ERRORS as error:
            await self._judgement.failed(task, endpoint, life, error)
        except RoostError as error:
            self._judgement.end(error)
        except Exception as error:
            traceback.print_exc()  # to the run's log
            what = f"The try met a fault of Roost's own ({type(error).__name__}: {error})."
            await self._judgement.failed(task, endpoint, life, AttemptError(what))

    def _find_dumps(self) -> None:
        """Also where this session had nothing to send: one that was killed may have left a record's dump behind."""
        for endpoint in self._endpoints:
            with contextlib.suppress(RoostError):
                endpoint.refresh()
                if endpoint.ready:
                    self._dumps.setdefault(endpoint.dump_dir, Budget(0))

    def _sweep(self) -> None:
        self._swept_at = time.monotonic()
        in_flight = {rid for _, rid in self._flying.values()}
        for directory in self._dumps:
            self._leftovers.sweep(directory, in_flight)

    async def _leave(self, status: ExtractorStatus, cause: str = "") -> ExtractorState:
        self._progress.say(status, cause)
        with contextlib.suppress(OSError):  # the run's end and its cause count, also where they can't be written down
            await self._progress.write()
        counts, compared = self._progress.state.counts, self._progress.state.parity_checked or "NOT ONE"
        self._report.progress(
            f"{status}: {counts.done + counts.freed} of {counts.assigned} records done,"
            f" {counts.quarantined} quarantined,"
            f" {compared} of this session compared with the server's own logprobs"
        )
        return self._progress.state


def _unforeseen(error: Exception) -> HostError:
    return HostError(
        f"The extractor cannot go on: {type(error).__name__}: {error}.",
        remedy="`inv logs --run` shows more; `inv extract` resumes.",
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
