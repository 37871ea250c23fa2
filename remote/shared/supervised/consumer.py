"""One thread that takes the items of a queue in batches, so that a batch shares one fsync or one commit."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from remote.shared.supervised import ATTENTION_SECONDS
from remote.shared.supervised.threads import DeadlineError, Thread

T = TypeVar("T")

STALL_SECONDS = 600.0
"""A batch that takes longer is hanging, for example on a lost network file system or a dead disk."""


class Consumer(Generic[T]):
    """Calls `take` with batches of the items that were put, on a thread of its own.

    The first exception of `take` ends the consumer: queued items are dropped, `error` has the exception, and `put` and
    `close` raise it. A batch has at most `most` items; its first item waits `seconds` for others. `at_end` is called
    on the same thread in every case.
    """

    def __init__(
        self,
        take: Callable[[list[T]], None],
        name: str,
        *,
        most: int,
        seconds: float = 0.0,
        queued: int = 0,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        self._at_end = at_end
        self._take, self._name, self._most, self._seconds = take, name, most, seconds
        self._queue: queue.Queue[T | None] = queue.Queue(queued)
        self._taking_since: float | None = None
        self._thread = Thread(self._run, name)

    @property
    def error(self) -> BaseException | None:
        """The exception that ended the consumer, or None."""
        return self._thread.error

    def put(self, item: T) -> None:
        """Queue an item, after waiting while the queue holds `queued` items; raises the consumer's error."""
        self._put(item)

    def close(self) -> None:
        """Wait until all queued items were taken; raises the consumer's error, or DeadlineError if it hangs."""
        self._put(None)
        while self._thread.alive:
            with contextlib.suppress(DeadlineError):
                self._thread.join(ATTENTION_SECONDS)
            self._refuse_stall()
        self._thread.join()

    def _put(self, item: T | None) -> None:
        while True:
            if self._thread.error is not None:
                raise self._thread.error
            try:
                return self._queue.put(item, timeout=ATTENTION_SECONDS)
            except queue.Full:
                self._refuse_stall()

    def _refuse_stall(self) -> None:
        since = self._taking_since
        if since is not None and time.monotonic() - since > STALL_SECONDS:
            raise DeadlineError(
                f"{self._name} has not finished a batch for {STALL_SECONDS:.0f} s.",
                remedy="A disk or a network file system is hanging: see `dmesg`.",
            )

    def _run(self) -> None:
        try:
            self._take_all()
        finally:
            if self._at_end is not None:
                self._at_end()

    def _take_all(self) -> None:
        last = False
        while not last:
            batch, last = take_batch(self._queue, self._most, self._seconds)
            if batch:
                self._taking_since = time.monotonic()
                self._take(batch)
                self._taking_since = None


def take_batch(waiting: queue.Queue[T | None], most: int, seconds: float = 0.0) -> tuple[list[T], bool]:
    """Wait for one item, then take the others that are queued or come within `seconds`, at most `most` in all.

    The second value is True once None, the mark of the end, has come.
    """
    batch: list[T] = []
    item = waiting.get()
    ends_at = time.monotonic() + seconds
    while item is not None:
        batch.append(item)
        if len(batch) == most:
            return batch, False
        try:
            item = waiting.get(timeout=max(0.0, ends_at - time.monotonic()))
        except queue.Empty:
            return batch, False
    return batch, True
