"""Reads a host at one moment: its runs, servers, GPUs and disks, from their state files. Changes nothing.

Runs on the host, for the recorder and for `inv watch`. Opens a ledger at most every few minutes, and only for the
recorder: counting a million rows every few seconds would cost more than all other parts of a reading.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from remote.history.gauges import Gauges
from remote.history.sglang import Load, ServerGauge
from remote.servers.housekeeping.ramdisk import dump_dirs, held_bytes, wait_seconds
from remote.servers.lifecycle import records
from remote.shared.errors import HostError, RoostError
from remote.shared.messages.history import Reading, RunReading, ServerReading
from remote.shared.messages.server import ServerState
from remote.shared.paths import RunPaths, Workdir
from remote.shared.processes import find
from remote.work.ledger import Ledger
from remote.work.lock import is_locked
from remote.work.progress import read_state, settled, wish, word

FIRST_SECONDS, SLACK_SECONDS = 60.0, 1.0
FREED_SECONDS = 300.0
"""Seconds between two counts of a run's delivered records."""


class Looker:
    """Reads one host repeatedly, and keeps files and libraries open that are slow to open.

    With `counts_freed`, some of the readings have the number of records that were delivered and deleted.
    """

    def __init__(self, workdir: Workdir, *, counts_freed: bool = False) -> None:
        self._workdir = workdir
        self._counts_freed = counts_freed
        self._counted_at: dict[str, float] = {}
        self._gauges = Gauges()
        self._servers: dict[str, ServerGauge] = {}

    def look(self, runs: Iterable[str]) -> Reading:
        """Return a reading of those of these runs that have a folder here, and of all servers, GPUs and disks."""
        directories = dump_dirs(self._workdir)
        waited = wait_seconds(directories)
        gpus = self._gauges.read()
        read = [found for name in runs if (found := _run(self._workdir.run(name), waited)) is not None]
        for run in read:
            run.freed = self._freed(run.run)
        return Reading(
            at=time.time(),
            runs=read,
            servers=list(self._look_at_servers()),
            gpus=gpus,
            gpu_problem=self._gauges.problem,
            dump_bytes=held_bytes(directories),
            ram_free_bytes=min((free for one in directories if (free := _room(one)[0]) is not None), default=None),
        )

    def idle_seconds(self, server: str) -> float:
        """Return for how many seconds the server has worked only on probes, as far as this process has seen."""
        gauge = self._servers.get(server)
        return 0.0 if gauge is None else time.monotonic() - gauge.used_at

    def _freed(self, run: str) -> int | None:
        """Return the number of the run's delivered records, counted again if that is due."""
        ledger, now = self._workdir.run(run).ledger, time.monotonic()
        due = now - self._counted_at.get(run, -FREED_SECONDS) >= FREED_SECONDS
        if not self._counts_freed or not due or not ledger.exists():
            return None
        self._counted_at[run] = now
        try:
            with Ledger(ledger, to_read=True) as opened:
                return opened.counts().freed
        except (
            RoostError,
            sqlite3.Error,
        ):  # the extractor reports a damaged ledger itself
            return None

    def _look_at_servers(self) -> Iterator[ServerReading]:
        for name in records.names(self._workdir):
            with suppress(HostError):  # a record of another version, which `inv status` reports
                state = records.load(self._workdir.server(name))
                if state is not None:
                    yield self._server(state)

    def _server(self, state: ServerState) -> ServerReading:
        alive, load = find(state.server) is not None, Load()
        if alive:
            gauge = self._servers.setdefault(state.name, ServerGauge(self._workdir.server(state.name)))
            load = gauge.look(state)
        else:
            self._servers.pop(state.name, None)
        return ServerReading(
            name=state.name,
            mode=state.mode,
            status=state.status,
            start=state.start,
            restarts=state.restarts,
            alive=alive or find(state.supervisor) is not None,
            cause=state.cause,
            trouble=state.trouble,
            queued=load.queued,
            running=load.running,
            prefill_tokens_per_second=load.prefill_tokens_per_second,
        )


def runs_at_work(workdir: Workdir) -> list[str]:
    """Return the names of the runs whose extractor lives."""
    return [name for name in workdir.run_names() if is_locked(workdir.run(name))]


def runs_since(workdir: Workdir, at: float) -> list[str]:
    """Return the names of the runs whose extractor wrote its state after `at`, even if it ended before this reading.

    If `at` is 0, as for a recorder's first reading, the last minute counts.
    """
    after = (at or time.time() - FIRST_SECONDS) - SLACK_SECONDS
    states = {name: workdir.run(name).state for name in workdir.run_names()}
    return [name for name, state in states.items() if state.exists() and state.stat().st_mtime > after]


def _run(paths: RunPaths, capture_wait: float) -> RunReading | None:
    """Return the reading of a run; None if this host has not begun it."""
    found = read_state(paths)
    if found is None:
        return None
    alive, wished = is_locked(paths), wish(paths)
    state = settled(found, alive)
    free, total = _room(paths.root)
    return RunReading(
        run=paths.root.name,
        alive=alive,
        word=word(state, alive, wished),
        wished=wished,
        state=state,
        disk_free_bytes=free or 0.0,
        disk_total_bytes=total or 0.0,
        capture_wait_seconds=capture_wait,
    )


def _room(path: Path) -> tuple[float | None, float | None]:
    """Return this user's free and total bytes of the file system; None if they cannot be read."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None, None
    return float(status.f_bavail * status.f_frsize), float(status.f_blocks * status.f_frsize)
