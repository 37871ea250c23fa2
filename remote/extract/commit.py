"""The ledger's one writer while a run is extracted: rows in groups, and dumps removed once their rows are durable.

Runs on the host as a thread of the extractor. A commit costs an fsync, so whatever queued up during one goes into the
next together.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from remote.extract.ledger import Ledger, Row
from remote.shared.errors import HostError, RoostError

BATCH = 256


class Committer:
    """Commits rows from the event loop; `close` waits for what was handed in."""

    def __init__(self, ledger: Path) -> None:
        self._path = ledger
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    async def commit(self, row: Row, dumps: Iterable[Path] = ()) -> None:
        """Return once `row` is durable and `dumps` are removed; raises HostError where the ledger cannot be written."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((row, tuple(dumps), future))
        await future

    def close(self) -> None:
        """End the thread after its last commit."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        """Whatever goes wrong is told to whoever waits: a thread that ended would keep the extractor for ever."""
        with ExitStack() as opened:
            ledger: Ledger | None = None
            while entries := self._next():
                error: RoostError | None = None
                try:
                    ledger = ledger or opened.enter_context(Ledger(self._path))
                    _commit(ledger, entries)
                except RoostError as told:
                    error = told
                except Exception as unexpected:
                    what = f"{type(unexpected).__name__}: {unexpected}"
                    error = HostError(f"Finished records could not be noted: {what}.", remedy="`inv extract` resumes.")
                self._loop.call_soon_threadsafe(_settle, [future for _, _, future in entries], error)

    def _next(self) -> list[_Entry]:
        """Wait for one entry and take along what else is there; empty at the end."""
        entry = self._queue.get()
        entries: list[_Entry] = []
        while entry is not None:
            entries.append(entry)
            if len(entries) == BATCH or self._queue.empty():
                return entries
            entry = self._queue.get()
        if entries:
            self._queue.put(None)
        return entries


_Entry = tuple[Row, tuple[Path, ...], "asyncio.Future[None]"]


def _commit(ledger: Ledger, entries: list[_Entry]) -> None:
    """Rows first, then the dumps that they stand for."""
    ledger.record([row for row, _, _ in entries])
    for _, dumps, _ in entries:
        for dump in dumps:
            dump.unlink(missing_ok=True)


def _settle(futures: list[asyncio.Future[None]], error: RoostError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
