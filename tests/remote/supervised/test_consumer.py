"""A consumer takes queued items in batches, and its callers learn of its end."""

from __future__ import annotations

import threading
import time

import pytest

from remote.shared.supervised import consumer
from remote.shared.supervised.consumer import Consumer
from remote.shared.supervised.threads import DeadlineError


class Held:
    """A consumer's `take` that keeps every batch and waits in the first one."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun, self.release = threading.Event(), threading.Event()

    def __call__(self, batch: list[int]) -> None:
        self.batches.append(batch)
        self.begun.set()
        assert self.release.wait(30)


def test_items_that_were_put_during_a_batch_share_the_next_one_up_to_the_limit() -> None:
    take = Held()
    eater = Consumer(take, "eater", most=3)
    eater.put(0)
    assert take.begun.wait(30)
    for number in range(1, 6):
        eater.put(number)
    take.release.set()
    eater.close()
    assert take.batches == [[0], [1, 2, 3], [4, 5]]


def test_a_full_batch_is_taken_before_its_seconds_are_over() -> None:
    take = Held()
    eater = Consumer(take, "eater", most=2, seconds=3600)
    eater.put(1)
    eater.put(2)
    assert take.begun.wait(30)
    take.release.set()
    eater.close()
    assert take.batches == [[1, 2]]


def test_the_first_item_of_a_batch_waits_for_others_that_come_within_the_seconds() -> None:
    take = Held()
    take.release.set()
    eater = Consumer(take, "eater", most=9, seconds=3600)
    eater.put(1)
    eater.put(2)
    eater.close()
    assert take.batches == [[1, 2]]


def test_a_consumer_takes_an_incomplete_batch_once_its_seconds_are_over() -> None:
    take = Held()
    eater = Consumer(take, "eater", most=9, seconds=0.01)
    eater.put(1)
    assert take.begun.wait(30)
    take.release.set()
    eater.close()


def test_a_caller_waits_while_the_queue_of_a_consumer_is_full() -> None:
    take = Held()
    eater = Consumer(take, "eater", most=1, queued=1)
    eater.put(1)
    assert take.begun.wait(30)
    eater.put(2)
    caller = threading.Thread(target=eater.put, args=[3])
    caller.start()
    caller.join(0.2)
    assert caller.is_alive()
    take.release.set()
    caller.join(30)
    assert not caller.is_alive()
    eater.close()
    assert take.batches == [[1], [2], [3]]


def test_a_consumer_takes_everything_before_it_is_closed() -> None:
    taken: list[int] = []
    eater = Consumer(taken.extend, "eater", most=3)
    for number in range(10):
        eater.put(number)
    eater.close()
    assert taken == list(range(10))


def test_a_caller_of_an_ended_consumer_gets_its_error_even_if_the_queue_is_full() -> None:
    begun, release = threading.Event(), threading.Event()

    def take(_: list[int]) -> None:
        begun.set()
        release.wait(30)
        raise ValueError("database disk image is malformed")

    eater = Consumer(take, "eater", most=1, queued=1)
    eater.put(1)
    assert begun.wait(30)
    eater.put(2)
    release.set()
    with pytest.raises(ValueError, match="malformed"):
        eater.put(3)
    with pytest.raises(ValueError, match="malformed"):
        eater.close()


def test_a_consumer_that_hangs_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "STALL_SECONDS", 0.1)
    release = threading.Event()

    def take(_: list[int]) -> None:
        release.wait(30)

    eater = Consumer(take, "delivery", most=1)
    eater.put(1)
    since = time.monotonic()
    with pytest.raises(DeadlineError, match="delivery has not finished a batch"):
        eater.close()
    assert time.monotonic() - since < 20
    release.set()
