"""What is there, or comes soon, shares a batch."""

from __future__ import annotations

import queue

from remote.shared.supervised.consumer import take_batch


class Coming(queue.Queue[int | None]):
    """Holds the first item; each further one comes when it is waited for, until there is none."""

    def __init__(self, first: int, *later: int | None) -> None:
        super().__init__()
        self.put(first)
        self._later = list(later)

    def get(self, block: bool = True, timeout: float | None = None) -> int | None:
        if self.empty() and timeout and self._later:
            self.put(self._later.pop(0))
        return super().get(block, timeout)


def test_items_that_come_soon_share_the_batch() -> None:
    assert take_batch(Coming(1, 2, 3), most=9, seconds=0.01) == ([1, 2, 3], False)


def test_without_seconds_only_waiting_items_are_taken() -> None:
    assert take_batch(Coming(1, 2), most=9) == ([1], False)


def test_a_full_batch_and_the_end_wait_for_nothing() -> None:
    assert take_batch(Coming(1, 2, 3), most=2, seconds=60) == ([1, 2], False)
    assert take_batch(Coming(1, None), most=9, seconds=60) == ([1], True)
