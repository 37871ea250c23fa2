"""`--free`: a host deletes what is durable at the destination, while the pull goes on. Runs on the laptop."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from hosts.errors import HostError, RoostError
from hosts.pull.sources import free
from hosts.transport.backend import Backend
from remote.shared.messages.extract import Delivered, ShardRow
from remote.shared.messages.transfer import DeliveredRow
from remote.shared.transfer.batches import take_batch
from remote.shared.transfer.destination import Destination

if TYPE_CHECKING:
    from hosts.pull.pull import HostTally

BATCH_RECORDS = 200


class Freeing:
    """Takes deliveries from any thread, tells the host in batches; does nothing where nobody asked for it.

    A record is freed only if its bytes were verified by this very pull and its file could be fsynced.
    """

    def __init__(self, backend: Backend, run: str, tally: HostTally | None) -> None:
        self._backend = backend
        self._run = run
        self._tally = tally
        self._queue: queue.Queue[Delivered | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name=f"free-{backend.host.name}")
        self.error: RoostError | None = None

    def __enter__(self) -> Freeing:
        if self._tally is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._tally is not None:
            self._queue.put(None)
            self._thread.join()
            if self.error is not None and kind is None:
                raise self.error

    def delivered(self, rows: list[DeliveredRow]) -> None:
        """These have just become durable."""
        for row in rows:
            if self._tally is None:
                return
            if row.durable:
                self._queue.put(Delivered(index=row.index, xxh3=row.xxh3))
            else:
                self.error = HostError(
                    "Nothing more was freed: the destination's file system cannot fsync.",
                    remedy="Pull to a local disk, or free by hand after checking with inv verify.",
                )

    def present(self, row: ShardRow, destination: Destination) -> None:
        """An earlier pull delivered this one and was not able to free it: read it again, then free it."""
        if self._tally is None:
            return
        known = destination.ledger.find(row.index)
        if known and known.durable and known.xxh3 == row.xxh3 and destination.is_intact(known):
            self._queue.put(Delivered(index=row.index, xxh3=row.xxh3))

    def _work(self) -> None:
        last = False
        while not last:
            batch, last = take_batch(self._queue, BATCH_RECORDS)
            if batch and self.error is None:
                try:
                    self._free(batch)
                except RoostError as error:
                    self.error = error

    def _free(self, batch: list[Delivered]) -> None:
        assert self._tally is not None
        result = free(self._backend, self._run, batch)
        self._tally.freed += result.records
        self._tally.freed_bytes += result.freed_bytes
