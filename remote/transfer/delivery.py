"""Verified records become durable: fsynced, renamed to their final names, written into the ledger, in that order.

One thread for all hosts. It takes whatever is ready at once, so that the price of an fsync and of a commit is shared
by many small records, while the streams go on.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from remote.messages.transfer import DeliveredRow
from remote.transfer.destination import Destination
from remote.transfer.landing import Landing

QUEUE_LIMIT = 512
BATCH_RECORDS = 256
FSYNC_THREADS = 4
_CANNOT_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)

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
        self._queue: queue.Queue[Ready | None] = queue.Queue(QUEUE_LIMIT)
        self._thread = threading.Thread(target=self._run, name="delivery")
        self._pool = ThreadPoolExecutor(FSYNC_THREADS, thread_name_prefix="fsync")
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
            batch, last = self._batch()
            if self.error is None and batch:
                try:
                    self._deliver(batch)
                except OSError as error:
                    self.error = error

    def _batch(self) -> tuple[list[Ready], bool]:
        """At least one record, and what else is waiting; True with the last."""
        batch: list[Ready] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            if len(batch) == BATCH_RECORDS:
                return batch, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _deliver(self, batch: list[Ready]) -> None:
        durable = list(self._pool.map(self._place, [ready.landing for ready in batch]))
        folder_durable = _fsync(self._destination.shards)
        now = time.time()
        rows = [
            self._row(ready, now, is_durable and folder_durable)
            for ready, is_durable in zip(batch, durable, strict=True)
        ]
        self._destination.ledger.record(rows)
        for ready, row in zip(batch, rows, strict=True):
            self._destination.release(row.index)
            ready.on_delivered([row])

    def _place(self, landing: Landing) -> bool:
        """Give one record its final name; whether its bytes are durable."""
        final = self._destination.final(landing.row.index, self._destination.store)
        if self._destination.store == "plain":
            durable = _fsync(landing.part)
            landing.part.replace(final)
            return durable
        from remote.codec.container import pack_file

        index = pack_file(landing.part, final)
        if index.xxh3 != landing.row.xxh3:
            raise OSError(errno.EIO, "a record changed on disk while it was compressed", str(landing.part))
        landing.part.unlink()
        return True

    def _row(self, ready: Ready, now: float, durable: bool) -> DeliveredRow:
        row, store = ready.landing.row, self._destination.store
        return DeliveredRow(
            index=row.index,
            rows=row.rows,
            size_bytes=row.size_bytes,
            xxh3=row.xxh3,
            host=ready.host,
            epoch=row.epoch,
            stored=store,
            disk_bytes=self._destination.final(row.index, store).stat().st_size,
            durable=durable,
            delivered_at=now,
        )


def _fsync(path: Path) -> bool:
    """Make a file or folder durable; False where this file system cannot."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return True
    except OSError as error:
        if error.errno in _CANNOT_FSYNC:
            return False
        raise
    finally:
        os.close(descriptor)
