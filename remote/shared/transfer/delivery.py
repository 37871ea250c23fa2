"""Verified records become durable: fsynced, renamed to their final names, written into the ledger, in that order.

One thread serves all hosts. It takes all records that are ready at once, so that many small records share one fsync of
the folder and one commit, while the streams go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from remote.shared.messages.transfer import DeliveredRow
from remote.shared.supervised.consumer import Consumer
from remote.shared.supervised.pools import Pool
from remote.shared.transfer.destination import Destination, Placed, cannot_write
from remote.shared.transfer.landing import Landing

PLACING_THREADS = 4
GATHERING_SECONDS = 0.05
"""How long a record waits for others that share its commit, which costs a journal and three fsyncs."""

OnDelivered = Callable[[DeliveredRow], None]


@dataclass(frozen=True)
class Ready:
    """A record with the right digest, and the function that is called once the record is durable."""

    landing: Landing
    host: str
    on_delivered: OnDelivered


class Delivery:
    """A context manager. At the block's end every record that was handed in is durable, or `error` says why not.

    Any error ends the delivery, and `on_error` is called. Errors of the disk and of the ledger become RoostErrors.
    """

    def __init__(self, destination: Destination, on_error: Callable[[], None]) -> None:
        self._destination = destination
        self._on_error = on_error
        self.error: Exception | None = None

    def __enter__(self) -> Delivery:
        most = self._destination.batch_records
        self._pool = Pool(PLACING_THREADS, "place")
        self._consumer = Consumer(self._take, "delivery", most=most, seconds=GATHERING_SECONDS, queued=2 * most)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):  # it is in `error`
            self._consumer.close()
        self._pool.shutdown()

    def hand_in(self, ready: Ready) -> None:
        """Queue a record, after waiting while the disk is slower than the wire; raises the delivery's error."""
        self._consumer.put(ready)

    def _take(self, batch: list[Ready]) -> None:
        try:
            self._deliver(batch)
        except Exception as error:
            self.error = cannot_write(self._destination, error) if isinstance(error, OSError) else error
            self._on_error()
            raise

    def _deliver(self, batch: list[Ready]) -> None:
        landings = [ready.landing for ready in batch]
        share = max(1, len(batch) // (4 * PLACING_THREADS))
        shares = [landings[start : start + share] for start in range(0, len(landings), share)]
        placed = [one for some in self._pool.map(self._place, shares) for one in some]
        flushed = self._destination.flush()
        now = time.time()
        rows = [self._row(ready, one, flushed, now) for ready, one in zip(batch, placed, strict=True)]
        self._destination.ledger.record(rows)
        self._destination.committed([row.index for row in rows])
        for ready, row in zip(batch, rows, strict=True):
            ready.on_delivered(row)

    def _place(self, landings: list[Landing]) -> list[Placed]:
        """Place several records, because a job of the pool costs as much as placing one small record."""
        return [self._destination.place(landing) for landing in landings]

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
