"""Finds the events between two readings of a host. Pure: compares the last reading with the present one.

The recorder keeps `Memory` on disk, so that the successor of a killed recorder reports no event twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.extract import Counts
from remote.shared.messages.history import Event, EventKind, Reading, RunReading, ServerReading, Settings

GAP_SECONDS = 90.0
"""If two readings are further apart, the recorder did not run all the time."""
WAIT_AGAIN_SECONDS = 600.0
"""Seconds after which the same wait is reported again: a run at a limit waits and continues every second."""
_PARITY = ("logprob", "log-prob", "canary")
"""Words in the message of every failed comparison of captured states."""


class KnownRun(Message):
    """A run at the last reading."""

    alive: bool = False
    began_at: float = 0.0
    status: str = ""
    paused: bool = False
    quarantined: int = 0
    finished: int = 0
    freed: int = 0
    moved_at: float = 0.0
    """Unix time at which the last record was finished, or at which the run last had a reason not to work."""
    stalled: bool = False
    disk_low: bool = False
    waited: str = ""
    waited_at: float = 0.0


class KnownServer(Message):
    """A server at the last reading."""

    status: str = ""
    start: int = 0
    restarts: int = 0
    trouble: str = ""
    gone: bool = False


class Memory(Message):
    """A host at the last reading."""

    seen_at: float = 0.0
    runs: dict[str, KnownRun] = Field(default_factory=dict)
    servers: dict[str, KnownServer] = Field(default_factory=dict)


def changes(memory: Memory, reading: Reading, settings: Settings) -> list[Event]:
    """Return the events since the last reading, and update `memory`."""
    events = list(_gap(memory, reading)) if memory.seen_at else []
    for run in reading.runs:
        events += _Run(memory.runs.setdefault(run.run, KnownRun()), run, reading.at, settings).events()
    for server in reading.servers:
        known = memory.servers.setdefault(server.name, KnownServer())
        events += _of_server(known, server, reading.at)
    memory.seen_at = reading.at
    return events


def finished(counts: Counts) -> int:
    """Return the number of records that are done on this host, delivered or not."""
    return counts.done + counts.freed


def _gap(memory: Memory, reading: Reading) -> Iterator[Event]:
    seconds = reading.at - memory.seen_at
    if seconds < GAP_SECONDS:
        return
    text = f"Nothing was recorded for {seconds / 60:.0f} min: the host was down, or its recorder was killed."
    for name, run in memory.runs.items():
        if run.alive:
            yield Event(at=reading.at, kind="gap", subject=f"run {name}", text=text)
    for name, server in memory.servers.items():
        if server.status in ("starting", "ready"):
            yield Event(at=reading.at, kind="gap", subject=f"server {name}", text=text)


class _Run:
    """One run between two readings."""

    def __init__(self, known: KnownRun, run: RunReading, at: float, settings: Settings) -> None:
        self._known, self._run, self._at, self._settings = known, run, at, settings

    def events(self) -> Iterator[Event]:
        known, run = self._known, self._run
        state = run.state
        new = state.started_at != known.began_at
        if new:
            yield self._event("started", f"Epoch {state.epoch}: {_share(state.counts)} so far.")
            known.stalled, known.moved_at, known.paused = False, self._at, False
        yield from self._wishes()
        if state.counts.quarantined > known.quarantined and not new:
            yield from self._quarantined()
        yield from self._freed(first=not known.began_at)
        yield from self._waits()
        yield from self._disk()
        if (known.alive or new) and not run.alive and (known.status != state.status or known.alive):
            yield self._ended()
        yield from self._stalls()
        known.alive, known.status, known.began_at = run.alive, state.status, state.started_at
        known.quarantined = state.counts.quarantined

    def _event(self, kind: EventKind, text: str) -> Event:
        return Event(at=self._at, kind=kind, subject=f"run {self._run.run}", text=text)

    def _wishes(self) -> Iterator[Event]:
        paused = self._run.alive and self._run.wished == "pause"
        if paused and not self._known.paused:
            yield self._event("paused", "It begins no further record until `inv resume`.")
        elif self._known.paused and not paused and self._run.alive:
            yield self._event("resumed", "It begins records again.")
        self._known.paused = paused

    def _quarantined(self) -> Iterator[Event]:
        more = self._run.state.counts.quarantined - self._known.quarantined
        causes = self._run.state.quarantine_causes
        cause = max(causes, key=lambda one: causes[one], default="the cause is not known")
        yield self._event(
            "quarantined", f"{more} more, {self._run.state.counts.quarantined} in all; most frequent cause: {cause}"
        )
        if any(word in one.lower() for one in causes for word in _PARITY):
            yield self._event("parity-failed", f"Captured states differ from the server's own answer: {cause}")

    def _freed(self, *, first: bool) -> Iterator[Event]:
        freed = self._run.freed
        if freed is None:
            return
        if freed > self._known.freed and not first:
            yield self._event(
                "freed", f"{freed - self._known.freed:,} more were delivered and deleted, {freed:,} in all."
            )
        self._known.freed = freed

    def _waits(self) -> Iterator[Event]:
        state = self._run.state
        if not self._run.alive or state.status != "waiting":
            return
        same = "".join(letter for letter in state.cause if not letter.isdigit())
        if same != self._known.waited or self._at - self._known.waited_at > WAIT_AGAIN_SECONDS:
            yield self._event("waiting", state.cause)
            self._known.waited_at = self._at
        self._known.waited = same

    def _disk(self) -> Iterator[Event]:
        free, least = self._run.disk_free_bytes, self._settings.min_free_bytes
        low = self._run.alive and bool(least) and free < least * (1.05 if self._known.disk_low else 1.0)
        if low and not self._known.disk_low:
            left, limit = f"{free / 1e9:.1f} GB", f"{least / 1e9:.1f} GB"
            yield self._event("disk-low", f"The shards' disk has {left} left, below its limit of {limit}.")
        self._known.disk_low = low

    def _ended(self) -> Event:
        state = self._run.state
        if state.status == "complete":
            failed = f", {state.counts.quarantined} quarantined" if state.counts.quarantined else ""
            return self._event("finished", f"{_share(state.counts)}{failed}.")
        if state.status == "failed":
            kind: EventKind = "parity-failed" if any(one in state.cause.lower() for one in _PARITY) else "failed"
            return self._event(kind, state.cause)
        return self._event("stopped", f"{_share(state.counts)}; `inv {state.task}` resumes the run.")

    def _stalls(self) -> Iterator[Event]:
        done = finished(self._run.state.counts) + self._run.state.counts.quarantined
        if done != self._known.finished or not self._run.alive or self._run.wished != "resume":
            self._known.finished, self._known.moved_at, self._known.stalled = done, self._at, False
            return
        silent = self._at - self._known.moved_at
        if silent < 0:  # the clock was set back
            self._known.moved_at = self._at
        if silent > self._settings.stall_seconds and not self._known.stalled:
            self._known.stalled = True
            cause = f" {self._run.state.cause}" if self._run.state.cause else f" It is {self._run.word}."
            yield self._event("stalled", f"No record was finished for {silent / 60:.0f} min.{cause}")


def _share(counts: Counts) -> str:
    return f"{finished(counts):,} of {counts.assigned:,} records done"


def _of_server(known: KnownServer, server: ServerReading, at: float) -> Iterator[Event]:
    subject = f"server {server.name}"
    gone = server.status in ("starting", "ready") and not server.alive
    if known.status and server.start != known.start and server.restarts > known.restarts:
        said = f"Start {server.start}, after a crash."
        yield Event(at=at, kind="restarted", subject=subject, text=said)
    elif server.start != known.start and server.alive:
        yield Event(at=at, kind="started", subject=subject, text=f"Start {server.start}, mode {server.mode}.")
    if (server.status, server.start) != (known.status, known.start) and not gone:
        if server.status == "ready":
            yield Event(at=at, kind="ready", subject=subject, text=f"Mode {server.mode} is ready.")
        elif server.status == "failed" and known.status:
            yield Event(at=at, kind="failed", subject=subject, text=server.cause or "It failed without a cause.")
        elif server.status == "stopped" and known.status:
            yield Event(at=at, kind="stopped", subject=subject, text=server.cause or "It was stopped.")
    if gone and not known.gone and known.status:
        text = f"Its record says {server.status}, but neither the server nor its supervisor runs any more."
        yield Event(at=at, kind="failed", subject=subject, text=text)
    if server.trouble and server.trouble != known.trouble:
        yield Event(at=at, kind="trouble", subject=subject, text=server.trouble)
    known.status, known.start, known.restarts = server.status, server.start, server.restarts
    known.trouble, known.gone = server.trouble, gone
