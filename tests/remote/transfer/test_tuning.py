"""The number of streams and compression follow what was measured; a clock stands in for the seconds."""

from __future__ import annotations

import os
import threading

import psutil
import pytest

from remote.shared.messages.transfer import HostTally
from remote.shared.transfer import rate, tuning
from remote.shared.transfer.lane import Way
from remote.shared.transfer.tuning import MEASURE_SECONDS, MOST_STREAMS, Climb, Trial, streams_for


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tuning, "time", clock)
    monkeypatch.setattr(rate, "time", clock)
    monkeypatch.setattr(tuning, "Cores", Idle)
    return clock


class Idle(tuning.Cores):
    """Cores that have all the time there is."""

    def at_work(self) -> float:
        return 0.0


def climbed(clock: Clock, pace_of: dict[int, float], start: int) -> int:
    """Where the climb ends if so many streams bring so many bytes a second."""
    tally = HostTally()
    climb, active = Climb(tally), start
    while not climb.settled:
        clock.now += MEASURE_SECONDS
        tally.plain_bytes += int(MEASURE_SECONDS * pace_of[active])
        active += climb.judge(active)
    return active


def test_streams_are_added_while_they_help(clock: Clock) -> None:
    assert climbed(clock, {1: 100, 2: 198, 3: 290, 4: 300}, 1) == 3
    assert climbed(clock, {1: 100, 2: 101}, 1) == 1
    assert climbed(clock, {n: 30.0 * n for n in range(1, 12)}, 5) == MOST_STREAMS


def test_no_stream_is_added_where_the_cores_are_the_limit(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Idle, "at_work", lambda self: os.cpu_count())
    assert climbed(clock, {1: 100, 2: 198}, 1) == 1


def test_cores_are_busy_while_all_of_them_work(monkeypatch: pytest.MonkeyPatch) -> None:
    times = psutil.cpu_times()
    monkeypatch.setattr(psutil, "cpu_times", lambda: times)
    cores = tuning.Cores()
    for work, rest, busy in ((95.0, 5.0, True), (5.0, 95.0, False)):
        times = times._replace(user=times.user + work, idle=times.idle + rest)
        assert cores.are_busy() is busy


def test_nothing_is_judged_before_it_was_measured(clock: Clock) -> None:
    climb = Climb(HostTally())
    clock.now += MEASURE_SECONDS / 2
    assert climb.judge(1) == 0
    assert not climb.settled


def test_a_long_round_trip_begins_with_more_streams() -> None:
    assert streams_for(0.0005) <= 2
    assert 4 <= streams_for(0.060) <= 8
    assert streams_for(3.0) == MOST_STREAMS


@pytest.mark.parametrize(("packed_pace", "kept"), [(140e6, True), (90e6, False)])
def test_compression_stays_only_where_more_plain_bytes_arrive(clock: Clock, packed_pace: float, kept: bool) -> None:
    tally, way = HostTally(), Way([], "", "payload")
    trial = Trial(tally, way)
    for _ in range(5):
        clock.now += MEASURE_SECONDS
        tally.plain_bytes += int(MEASURE_SECONDS * (packed_pace if way.packed else 100e6))
        trial.judge()
    assert way.packed is kept


def test_a_rate_limit_makes_streams_wait_for_their_bytes(clock: Clock) -> None:
    waited = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            clock.now += timeout or 0.0
            return False

    limit = rate.RateLimit(1_000_000)
    clock.now += 60
    for _ in range(10):
        limit.spend(500_000, Stop())
    assert sum(waited) == pytest.approx(5.0 - 0.25)
