"""What is found by measuring while a pull goes on: the number of streams, and whether compression pays."""

from __future__ import annotations

import math
import os
import time

import psutil

from remote.shared.messages.transfer import HostTally
from remote.shared.transfer.lane import Way

CHANNEL_WINDOW_BYTES = 2 << 20
"""OpenSSH's flow control lets so much be under way in a channel: a stream's limit is window / round trip."""
WORTHWHILE_BYTES_PER_SECOND = 250e6
"""What streams are added for at the start; measuring goes on from there."""
MOST_STREAMS = 8
CORES_PER_STREAM = 2
"""One for ssh's cipher, the rest for landing: on a LAN more streams than that only take turns."""
FIRST_STREAMS = 2
"""On a LAN, where the cores are there: the second one works while the first waits for a disk."""
MEASURE_SECONDS = 2.0
TRIAL_BYTES = 64 << 20
"""Plain bytes that a pace with and without compression is taken over: several compressed answers of each stream."""
BUSY = 0.9
"""Share of this machine's cores from which on it is they, and not the wire, that more streams would wait for."""
WAITING = 0.5
"""Cores at work, below which a connection that takes its time waits for the way and not for a core."""
GAIN = 0.15
"""Another stream stays if throughput grew by this share, or by half of the stream's own share where that is less."""


def streams_for(round_trip: float) -> int:
    """How many streams to begin with at this round trip (seconds)."""
    needed = math.ceil(WORTHWHILE_BYTES_PER_SECOND * round_trip / CHANNEL_WINDOW_BYTES)
    affordable = max(1, min(FIRST_STREAMS, (os.cpu_count() or 1) // CORES_PER_STREAM))
    return max(affordable, min(MOST_STREAMS, needed))


class Pace:
    """Plain bytes a second since it was last asked, a measurement's time apart."""

    def __init__(self, tally: HostTally) -> None:
        self._tally = tally
        self.restart()

    def restart(self) -> None:
        """Measure from now on."""
        self._since = time.monotonic()
        self._bytes = self._tally.plain_bytes

    def measured(self, least_bytes: int = 0) -> float | None:
        """The pace, or None while it is too early to say."""
        seconds = time.monotonic() - self._since
        if seconds < MEASURE_SECONDS or self._tally.plain_bytes - self._bytes < least_bytes:
            return None
        pace = (self._tally.plain_bytes - self._bytes) / seconds
        self.restart()
        return pace


class Cores:
    """This machine's cores since they were last asked about."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def at_work(self) -> float:
        """Return how many cores were busy since the last call, by any process."""
        before, self._before = self._before, psutil.cpu_times()
        passed = sum(self._before) - sum(before)
        idle = self._before.idle - before.idle
        return (1 - idle / passed) * (os.cpu_count() or 1) if passed > 0 else 0.0

    def are_busy(self) -> bool:
        """Whether hardly any of their time is left."""
        return self.at_work() >= BUSY * (os.cpu_count() or 1)


class Climb:
    """Finds the number of streams by trying one more, and keeping it only where it helped.

    None is tried where the cores have no time for it.
    """

    def __init__(self, tally: HostTally) -> None:
        self.settled = False
        self._cores = Cores()
        self._pace = Pace(tally)
        self._best: float | None = None

    def judge(self, active: int) -> int:
        """+1, 0 or -1: how the number of streams is to change now."""
        pace = None if self.settled else self._pace.measured()
        if pace is None:
            return 0
        busy = self._cores.are_busy()
        if self._best is not None and pace < self._best * (1 + min(GAIN, 0.5 / max(1, active - 1))):
            self.settled = True
            return -1
        self._best = pace
        self.settled = busy or active >= MOST_STREAMS
        return 0 if self.settled else 1


class Trial:
    """Compares the pace with and without compression, once, and leaves on what is faster."""

    def __init__(self, tally: HostTally, way: Way) -> None:
        self._pace = Pace(tally)
        self._way = way
        self._plain: float | None = None
        self._warm = False
        self._over = False

    def judge(self) -> None:
        """Called now and then; does something about every two seconds until it is decided."""
        pace = None if self._over else self._pace.measured(TRIAL_BYTES)
        if pace is None:
            return
        if self._plain is None:
            self._plain = pace
            self._way.packed = True
        elif not self._warm:
            self._warm = True
        else:
            self._way.packed = pace > self._plain
            self._over = True
