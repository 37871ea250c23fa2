"""The recorder: a detached process on each host that reads the host every ten seconds, keeps histories and notifies.

Runs on the host while a run or a server works, and for some time after. It only reads state files and takes no lock of
another process. It may be killed at any time without an effect on others.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from remote.context import Context
from remote.history.changes import Memory, changes
from remote.history.lock import recorder_lock
from remote.history.look import Looker, runs_at_work, runs_since
from remote.history.points import Tally, of_run, of_server
from remote.history.store import HistoryError, to_write
from remote.history.telling import Outbox, Teller
from remote.shared.errors import RoostError
from remote.shared.files import read_own, write_whole
from remote.shared.messages.history import Event, Point, Reading, RecorderEnd, RecorderRequest, Settings
from remote.shared.messages.server import StopRequest
from remote.shared.paths import Workdir
from remote.shared.supervised.pools import Pool

LINGER_SECONDS = 300.0
"""Seconds without a working run or server after which the recorder ends."""
MOST_UNWRITTEN = 360
"""Points of one history that are kept in memory while the disk is full: an hour."""
TELL_AGAIN_SECONDS = 600.0
"""Seconds after which the same problem of the recorder is logged again."""


class Kept(Memory, Outbox):
    """`memory.json`: the last reading, and the notifications to send."""

    idle_since: dict[str, float] = Field(default_factory=dict)


def recorder(request: RecorderRequest, context: Context) -> RecorderEnd:
    """The verb `recorder`: record until no run or server has worked for some time, or until SIGTERM."""
    with recorder_lock(context) as ours:
        if not ours:
            return RecorderEnd(looks=0, why="another recorder runs on this host")
        told = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: told.set())
        return Recorder(context).run(told, request.every_seconds)


class Recorder:
    """Keeps all histories of this host."""

    def __init__(self, context: Context) -> None:
        self._context, self._workdir = context, context.workdir
        self._looker = Looker(context.workdir, counts_freed=True)
        self._kept = _read_kept(context.workdir)
        self._teller = Teller(self._kept)
        self._books: dict[Path, _Book] = {}
        self._said: dict[str, float] = {}
        self._looked = time.monotonic()
        self._worked = time.monotonic()
        self._stopping: tuple[str, Future[Any]] | None = None
        self._pool = Pool(1, "idle-stop")

    def run(self, told: threading.Event, every: float) -> RecorderEnd:
        """Read the host every `every` seconds until `told` is set, or until no run or server works any more."""
        looks = 0
        try:
            while not told.is_set():
                self.look()
                looks += 1
                if time.monotonic() - self._worked > LINGER_SECONDS and not self._teller.busy:
                    return RecorderEnd(looks=looks, why="no run or server is working")
                told.wait(every)
            return RecorderEnd(looks=looks, why="it was told to end")
        finally:
            self._keep()
            self._teller.close()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def look(self) -> None:
        """Read the host once: record, find events, notify, and stop idle servers."""
        settings = read_settings(self._workdir)
        at_work = runs_at_work(self._workdir)
        before = {name for name, run in self._kept.runs.items() if run.alive}
        reading = self._looker.look(sorted({*at_work, *before, *runs_since(self._workdir, self._kept.seen_at)}))
        if at_work or any(server.alive for server in reading.servers):
            self._worked = time.monotonic()
        events = changes(self._kept, reading, settings)
        events += self._stop_idle(settings, reading, busy=bool(at_work))
        self._record(reading, events, before)
        self._teller.add(events, settings)
        untold = self._teller.work(settings.notify, time.time())
        for event in untold:
            self._book_of(event.subject).take([], [event], reading.at, self._trouble)
        for event in [*events, *untold]:
            self._context.report.progress(f"{event.subject}: {event.kind}: {event.text}")
        self._keep()

    def _record(self, reading: Reading, events: list[Event], before: set[str]) -> None:
        seconds, self._looked = time.monotonic() - self._looked, time.monotonic()
        for run in reading.runs:
            book = self._book_of(f"run {run.run}")
            book.tally.worked += seconds if run.run in before else 0.0
            book.points.append(of_run(run, reading, book.tally))
        for server in reading.servers:
            if server.alive:
                self._book_of(f"server {server.name}").points.append(of_server(server, reading))
        servers = [event for event in events if event.subject.startswith("server ")]
        for subject in {f"run {run.run}" for run in reading.runs} | {event.subject for event in servers}:
            mine = [event for event in events if event.subject == subject]
            if subject.startswith("run "):  # a run's history also has the events of its servers
                mine = [event for event in events if event.subject == subject or event in servers]
            self._book_of(subject).events += mine
        for book in self._books.values():
            book.write(reading.at, self._trouble)

    def _book_of(self, subject: str) -> _Book:
        kind, _, name = subject.partition(" ")
        path = self._workdir.run(name).history if kind == "run" else self._workdir.server(name).history
        if path not in self._books:
            self._books[path] = _Book(path, self._trouble)
        return self._books[path]

    def _stop_idle(self, settings: Settings, reading: Reading, *, busy: bool) -> list[Event]:
        """Begin to stop the first server that was idle for long enough; return the events of the stop before."""
        if self._stopping is not None:
            name, job = self._stopping
            if not job.done():
                return []
            self._stopping = None
            if error := job.exception():
                self._trouble(f"The idle server {name!r} could not be stopped: {error}")
                return []
            minutes = (settings.idle_stop_seconds or 0) / 60
            text = f"It had no work for {minutes:.0f} min (`idle_stop`); `inv serve` starts it again."
            return [Event(at=reading.at, kind="idle-stopped", subject=f"server {name}", text=text)]
        ready = [server.name for server in reading.servers if server.status == "ready" and server.alive]
        idle = self._kept.idle_since
        for name in {*ready, *idle}:
            if name not in ready or busy:
                idle.pop(name, None)
            elif name not in idle or not reading.at - idle[name] >= 0:
                idle[name] = reading.at
        if settings.idle_stop_seconds is None:
            return []
        for name, since in idle.items():
            seconds = min(reading.at - since, self._looker.idle_seconds(name))
            if seconds >= settings.idle_stop_seconds and not runs_at_work(self._workdir):
                self._stopping = (name, self._pool.submit(self._stop, name))
                break
        return []

    def _stop(self, name: str) -> None:
        from remote.servers.lifecycle.stop import stop

        stop(StopRequest(names=[name]), replace(self._context, operator="idle_stop"))

    def _trouble(self, text: str) -> None:
        """Log a problem of the recorder itself, at intervals."""
        now = time.monotonic()
        if now - self._said.get(text, -TELL_AGAIN_SECONDS) >= TELL_AGAIN_SECONDS:
            self._said[text] = now
            self._context.report.progress(text)

    def _keep(self) -> None:
        content = self._kept.model_dump_json(indent=1).encode()
        try:
            write_whole(self._workdir.recorder.memory, content, durable=False)
        except OSError as error:
            self._trouble(f"The last reading could not be written: {error.strerror}.")


class _Book:
    """One history, and the points and events that are not written yet."""

    def __init__(self, path: Path, trouble: Any) -> None:
        self._path = path
        self.points: list[Point] = []
        self.events: list[Event] = []
        self.tally = Tally(None)
        with contextlib.suppress(HistoryError):
            store, aside = to_write(path)
            with store:
                self.tally = Tally(store.last())
            if aside:
                trouble(aside)
                self.events.append(Event(at=time.time(), kind="history", subject=_subject(path), text=aside))

    def take(self, points: list[Point], events: list[Event], now: float, trouble: Any) -> None:
        """Add a point and events, and write."""
        self.points += points
        self.events += events
        self.write(now, trouble)

    def write(self, now: float, trouble: Any) -> None:
        """Write the waiting points and events. If the disk is full, the next call tries again."""
        if not self.points and not self.events:
            return
        if not self._path.parent.is_dir():  # `inv clean` removed the run
            self.points, self.events = [], []
            return
        try:
            with to_write(self._path)[0] as store:
                store.add(self.points, self.events, now)
            self.points, self.events = [], []
        except HistoryError as error:
            trouble(str(error))
            del self.points[:-MOST_UNWRITTEN]
            del self.events[:-MOST_UNWRITTEN]


def _subject(path: Path) -> str:
    kind = "run" if path.parent.parent.name == "runs" else "server"
    return f"{kind} {path.parent.name}"


def read_settings(workdir: Workdir) -> Settings:
    """Return the recorder's settings; the defaults if they cannot be read."""
    try:
        return Settings.model_validate_json(read_own(workdir.recorder.settings))
    except (OSError, RoostError, ValidationError):
        return Settings()


def _read_kept(workdir: Workdir) -> Kept:
    try:
        return Kept.model_validate_json(read_own(workdir.recorder.memory))
    except (OSError, RoostError, ValidationError):
        return Kept()
