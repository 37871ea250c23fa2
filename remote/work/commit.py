"""The ledger's only writer during a run: commits rows in groups, and removes dumps once their rows are durable.

Runs on the host on a thread of the extractor. A commit costs an fsync, so all rows that are queued during one commit
share the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from remote.shared.errors import HostError, RoostError
from remote.shared.supervised.consumer import Consumer
from remote.work.ledger import Ledger, Row

BATCH = 256

_Entry = tuple[Row, tuple[Path, ...], "asyncio.Future[None]"]


class Committer:
    """Commits rows from the event loop; `close` waits for all queued rows. `remedy` says how to continue the run."""

    def __init__(self, ledger: Path, remedy: str) -> None:
        self._path, self._remedy = ledger, remedy
        self._loop = asyncio.get_running_loop()
        self._ledger: Ledger | None = None
        self._consumer = Consumer(self._take, "the ledger's writer", most=BATCH, at_end=self._let_go)

    async def commit(self, row: Row, dumps: Iterable[Path] = ()) -> None:
        """Return once `row` is durable and `dumps` are removed; raises HostError if the ledger cannot be written."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._consumer.put((row, tuple(dumps), future))
        await future

    def close(self) -> None:
        """Return after the last commit."""
        self._consumer.close()

    def _take(self, entries: list[_Entry]) -> None:
        """Commit a batch; any error goes to each caller that waits for the batch."""
        error: RoostError | None = None
        try:
            self._ledger = self._ledger or Ledger(self._path)
            _commit(self._ledger, entries)
        except RoostError as told:
            error = told
        except Exception as unexpected:
            what = f"{type(unexpected).__name__}: {unexpected}"
            error = HostError(f"Finished records could not be written to the ledger: {what}.", remedy=self._remedy)
        self._loop.call_soon_threadsafe(_settle, [future for _, _, future in entries], error)

    def _let_go(self) -> None:
        if self._ledger is not None:
            self._ledger.close()


def _commit(ledger: Ledger, entries: list[_Entry]) -> None:
    """Commit the rows, then remove their dumps."""
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
