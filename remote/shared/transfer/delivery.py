"""Verified records become durable: fsynced, renamed to their final names, written into the ledger, in that order.

One thread for all hosts. It takes whatever is ready at once, so that the price of an fsync and of a commit is shared
by many small records, while the streams go on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from remote.shared.messages.transfer import DeliveredRow
from remote.shared.transfer.batches import take_batch
from remote.shared.transfer.destination import Destination, Placed
from remote.shared.transfer.landing import Landing

PLACING_THREADS = 4
GATHERING_SECONDS = 0.05
"""What a record waits for others to share its commit: a journal and three fsyncs."""

OnDelivered = Callable[[list[DeliveredRow]], None]


@dataclass(frozen=True)
class Ready:
    """A record whose digest was right, and who wants to know when it is durable."""

    landing: Landing
    host: str
    on_delivered: OnDelivered


class Delivery:
    """Started with its block; at its end everything handed in is durable. `error` says why it stopped early."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._queue: queue.Queue[Ready | None] = queue.Queue(2 * destination.batch_records)
        self._thread = threading.Thread(target=self._run, name="delivery")
        self._pool = ThreadPoolExecutor(PLACING_THREADS, thread_name_prefix="place")
        self.error: OSError | None = None

    def __enter__(self) -> Delivery:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()
        self._pool.shutdown()

    def hand_in(self, ready: Ready) -> None:
        """Queue a record; waits where the disk is slower than the wire."""
        self._queue.put(ready)

    def _run(self) -> None:
        batch: list[Ready] = []
        last = False
        while not last:
            batch, last = take_batch(self._queue, self._destination.batch_records, GATHERING_SECONDS)
            if self.error is None and batch:
                try:
                    self._deliver(batch)
                except OSError as error:
                    self.error = error

    def _deliver(self, batch: list[Ready]) -> None:
        placed = list(self._pool.map(self._destination.place, [ready.landing for ready in batch]))
        flushed = self._destination.flush()
        now = time.time()
        rows = [self._row(ready, one, flushed, now) for ready, one in zip(batch, placed, strict=True)]
        self._destination.ledger.record(rows)
        self._destination.committed()
        for ready, row in zip(batch, rows, strict=True):
            self._destination.release(row.index)
            ready.on_delivered([row])

    def _row(self, ready: Ready, placed: Placed, flushed: bool, now: float) -> DeliveredRow:
        row = ready.landing.row
        return DeliveredRow(
            index=row.index,
            rows=row.rows,
            size_bytes=row.size_bytes,
            xxh3=row.xxh3,
            host=ready.host,
            epoch=row.epoch,
            stored=self._destination.store,
            disk_bytes=placed.disk_bytes,
            durable=placed.durable and flushed,
            delivered_at=now,
        )
