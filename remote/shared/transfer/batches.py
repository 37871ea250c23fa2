"""Whole batches out of a queue: what one fsync or one commit is worth. Either side, called by delivery and freeing."""

from __future__ import annotations

import queue
import time
from typing import TypeVar

T = TypeVar("T")


def take_batch(waiting: queue.Queue[T | None], most: int, seconds: float = 0.0) -> tuple[list[T], bool]:
    """Wait for one item, then take what else is there or comes within so many seconds, `most` in all.

    True once None, the end, has come.
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
