"""Whole batches out of a queue: what one fsync or one commit is worth. Either side, called by delivery and freeing."""

from __future__ import annotations

import queue
from typing import TypeVar

T = TypeVar("T")


def take_batch(waiting: queue.Queue[T | None], most: int) -> tuple[list[T], bool]:
    """Wait for one item, then take what else is there, `most` in all; True once None, the end, has come."""
    batch: list[T] = []
    item = waiting.get()
    while item is not None:
        batch.append(item)
        if len(batch) == most:
            return batch, False
        try:
            item = waiting.get_nowait()
        except queue.Empty:
            return batch, False
    return batch, True
