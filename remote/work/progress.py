"""The state of a running extractor, `runs/<run>/state.json`, which it rewrites about once a second.

Runs on the host inside the extractor's event loop. A thread writes the file, because an fsync can take long while
shards are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from remote.shared.files import read_own, write_whole
from remote.shared.messages.extract import Control, Counts, ExtractorState, ExtractorStatus, Task
from remote.shared.paths import RunPaths
from remote.shared.processes import reference
from remote.shared.supervised.pools import Pool
from remote.work.ledger import Row

Lack = Literal["", "paused", "disk", "server", "ramdisk"]
"""The thing that a run lacks while it sends nothing."""

WRITE_SECONDS = 1.0
RATE_SECONDS = 60.0
SILENT_SECONDS = 20.0
"""If an extractor has not written its file for this long, the extractor is frozen or its disk hangs."""


def read_state(paths: RunPaths) -> ExtractorState | None:
    """Return the extractor's last state, or None if there is none that can be read."""
    try:
        return ExtractorState.model_validate_json(read_own(paths.state))
    except (OSError, ValidationError):
        return None


def asked(paths: RunPaths) -> Control | None:
    """Return the latest request of a person to the extractor; an unreadable file counts as `resume`."""
    try:
        return Control.model_validate_json(read_own(paths.control))
    except (OSError, ValidationError):
        return None


def wish(paths: RunPaths) -> Literal["pause", "resume", "stop"]:
    """Return the action that a person requested last, or `resume`."""
    left = asked(paths)
    return "resume" if left is None else left.action


def settled(state: ExtractorState, alive: bool) -> ExtractorState:
    """Return the state; as failed, if the state says that the run is running but its process was killed."""
    if alive or state.status not in ("running", "paused", "waiting"):
        return state
    how = f"`inv {state.task}` resumes the run."
    cause = f"The extractor ended without an error (it was killed, or the host restarted); {how}"
    return state.model_copy(update={"status": "failed", "cause": cause, "tokens_per_second": 0.0})


def word(state: ExtractorState, alive: bool, wished: str) -> str:
    """Return the run's status in words, from its process, its last state and that state's age, and the request."""
    silent = time.time() - state.updated_at
    if alive and state.updated_at and silent > SILENT_SECONDS:
        return f"silent for {silent:.0f} s"
    if alive and wished in ("pause", "stop") and state.status in ("running", "waiting", "paused") and state.in_flight:
        return f"draining {state.in_flight}"
    if alive and wished == "pause":
        return "paused"
    return state.status


class Progress:
    """The state of a session, written to the file."""

    def __init__(self, path: Path, run: str, epoch: int, counts: Counts, task: Task = "extract") -> None:
        self.state = ExtractorState(
            run=run,
            epoch=epoch,
            task=task,
            status="running",
            process=reference(os.getpid()),
            counts=counts,
            started_at=time.time(),
        )
        self._path = path
        self._recent: deque[tuple[float, int]] = deque()
        self._since = time.monotonic()
        self._waits_since: float | None = None
        self._lacks: Lack = ""
        self._lacks_since = time.monotonic()
        self._writing = asyncio.Lock()
        self._thread = Pool(1, "state")

    def finished(self, row: Row) -> None:
        """Count a record whose row is durable."""
        counts = self.state.counts
        if row.state == "quarantined":
            counts.quarantined += 1
            causes = self.state.quarantine_causes
            causes[row.cause] = causes.get(row.cause, 0) + 1
            return
        counts.done += 1
        counts.tokens_done += row.rows
        counts.bytes_done += row.size_bytes
        self.state.flagged += bool(row.flag)
        if row.parity:
            self.state.parity_checked += 1
            self.state.parity_excess = max(self.state.parity_excess, float(row.parity["excess"]))
        self._recent.append((time.monotonic(), row.rows))

    def in_flight(self, records: int) -> None:
        """Note the number of records in flight."""
        self.state.in_flight = records

    def wait_for_room(self, waits: bool) -> None:
        """Count the time for which records wait for room in the RAM disk."""
        now = time.monotonic()
        if self._waits_since is not None:
            self.state.backpressure_seconds += now - self._waits_since
        self._waits_since = now if waits else None

    def say(self, status: ExtractorStatus, cause: str = "", lacks: Lack = "") -> bool:
        """Set the status and the thing that the run lacks from now on; return whether the status changed."""
        self._count_waiting(lacks)
        news = (status, cause) != (self.state.status, self.state.cause)
        self.state.status, self.state.cause = status, cause
        return news

    def _count_waiting(self, lacks: Lack) -> None:
        """Count the time since the last call as waiting for the thing that was lacking."""
        now = time.monotonic()
        if self._lacks:
            waited = self.state.waited
            waited[self._lacks] = waited.get(self._lacks, 0.0) + now - self._lacks_since
        self._lacks, self._lacks_since = lacks, now

    async def run(self) -> None:
        """Write the file until cancelled; after a failed write (a full disk), the next write tries again."""
        while True:
            with contextlib.suppress(OSError):
                await self.write()
            await asyncio.sleep(WRITE_SECONDS)

    async def write(self) -> None:
        """Write the file now; writes never overlap, so an older state never replaces a newer one."""
        async with self._writing:
            self.state.tokens_per_second = self._rate(time.monotonic())
            self.state.updated_at = time.time()
            content = self.state.model_dump_json(indent=1).encode()
            await asyncio.get_running_loop().run_in_executor(self._thread, write_whole, self._path, content)

    def close(self) -> None:
        """End the writing thread."""
        self._thread.shutdown(cancel_futures=True)

    def _rate(self, now: float) -> float:
        while self._recent and self._recent[0][0] < now - RATE_SECONDS:
            self._recent.popleft()
        seconds = min(now - self._since, RATE_SECONDS)
        return sum(tokens for _, tokens in self._recent) / seconds if seconds > 0 else 0.0
