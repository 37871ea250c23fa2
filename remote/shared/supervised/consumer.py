"""One thread that takes queued items in batches, so that a batch shares one fsync or one commit."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
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

    The thread is woken by the first item and by a full batch, not by the items between: with 2,000 small records a
    second, the switch of threads at each `put` of a `queue.Queue` took a third of the caller's CPU time.
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
        self._take, self._name, self._most, self._seconds, self._queued = take, name, most, seconds, queued
        self._items: deque[T] = deque()
        self._closing = False
        lock = threading.Lock()
        self._filled = threading.Condition(lock)
        self._room = threading.Condition(lock)
        self._taking_since: float | None = None
        self._thread = Thread(self._run, name)

    @property
    def error(self) -> BaseException | None:
        """The exception that ended the consumer, or None."""
        return self._thread.error

    def put(self, item: T) -> None:
        """Queue an item, after waiting while the queue holds `queued` items; raises the consumer's error."""
        with self._room:
            self._refuse_error()
            while self._queued and len(self._items) >= self._queued:
                self._room.wait(ATTENTION_SECONDS)
                self._refuse_error()
                self._refuse_stall()
            self._items.append(item)
            if len(self._items) in (1, self._most):
                self._filled.notify()

    def close(self) -> None:
        """Wait until all queued items were taken; raises the consumer's error, or DeadlineError if it hangs."""
        with self._filled:
            self._closing = True
            self._filled.notify()
        while self._thread.alive:
            with contextlib.suppress(DeadlineError):
                self._thread.join(ATTENTION_SECONDS)
            self._refuse_stall()
        self._thread.join()

    def _refuse_error(self) -> None:
        if self._thread.error is not None:
            raise self._thread.error

    def _refuse_stall(self) -> None:
        since = self._taking_since
        if since is not None and time.monotonic() - since > STALL_SECONDS:
            raise DeadlineError(
                f"{self._name} has not finished a batch for {STALL_SECONDS:.0f} s.",
                remedy="A disk or a network file system is hanging: see `dmesg`.",
            )

    def _run(self) -> None:
        try:
            while batch := self._batch():
                self._taking_since = time.monotonic()
                self._take(batch)
                self._taking_since = None
        finally:
            if self._at_end is not None:
                self._at_end()

    def _batch(self) -> list[T]:
        """Wait for an item, then `seconds` for a full batch; empty once the consumer is closed and all was taken."""
        with self._filled:
            self._filled.wait_for(lambda: self._items or self._closing)
            self._filled.wait_for(lambda: len(self._items) >= self._most or self._closing, self._seconds)
            batch = [self._items.popleft() for _ in range(min(self._most, len(self._items)))]
            self._room.notify_all()
            return batch
