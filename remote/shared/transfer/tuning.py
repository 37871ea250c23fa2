"""Finds two settings by measurement during a pull: the number of streams, and whether compression is faster."""

from __future__ import annotations

import math
import os
import time

import psutil

from remote.shared.messages.transfer import HostTally
from remote.shared.transfer.lane import Way

CHANNEL_WINDOW_BYTES = 2 << 20
"""The most bytes in flight in one channel of OpenSSH, so that a stream's limit is window / round trip."""
WORTHWHILE_BYTES_PER_SECOND = 250e6
"""The throughput that the first streams are meant for; measurement continues from there."""
MOST_STREAMS = 8
CORES_PER_STREAM = 2
"""One for ssh's cipher, one for landing; on a LAN, more streams would only wait for each other."""
FIRST_STREAMS = 2
"""The first streams on a LAN with enough cores; the second works while the first waits for a disk."""
MEASURE_SECONDS = 2.0
TRIAL_BYTES = 64 << 20
"""Plain bytes over which the pace with and without compression is measured: several answers of each stream."""
BUSY = 0.9
"""Share of busy cores from which more streams would wait for the cores and not for the wire."""
WAITING = 0.5
"""Busy cores below which a slow connection waits for the network and not for a core."""
GAIN = 0.15
"""Growth of throughput for which another stream stays; half of the stream's own share is enough if that is less."""


def streams_for(round_trip: float) -> int:
    """Return how many streams to begin with at this round trip (seconds)."""
    needed = math.ceil(WORTHWHILE_BYTES_PER_SECOND * round_trip / CHANNEL_WINDOW_BYTES)
    affordable = max(1, min(FIRST_STREAMS, (os.cpu_count() or 1) // CORES_PER_STREAM))
    return max(affordable, min(MOST_STREAMS, needed))


class Pace:
    """Plain bytes per second since the last measurement."""

    def __init__(self, tally: HostTally) -> None:
        self._tally = tally
        self.restart()

    def restart(self) -> None:
        """Measure from now on."""
        self._since = time.monotonic()
        self._bytes = self._tally.plain_bytes

    def measured(self, least_bytes: int = 0) -> float | None:
        """Return the pace, or None if too little time or data has passed."""
        seconds = time.monotonic() - self._since
        if seconds < MEASURE_SECONDS or self._tally.plain_bytes - self._bytes < least_bytes:
            return None
        pace = (self._tally.plain_bytes - self._bytes) / seconds
        self.restart()
        return pace


class Cores:
    """The use of this machine's cores since the last call."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def at_work(self) -> float:
        """Return how many cores were busy since the last call, by any process."""
        before, self._before = self._before, psutil.cpu_times()
        passed = sum(self._before) - sum(before)
        idle = self._before.idle - before.idle
        return (1 - idle / passed) * (os.cpu_count() or 1) if passed > 0 else 0.0

    def are_busy(self) -> bool:
        """Return whether nearly all cores were busy since the last call."""
        return self.at_work() >= BUSY * (os.cpu_count() or 1)


class Climb:
    """Finds the number of streams by trying one more, and keeping it only if it helped.

    No stream is added while the cores are busy.
    """

    def __init__(self, tally: HostTally) -> None:
        self.settled = False
        self._cores = Cores()
        self._pace = Pace(tally)
        self._best: float | None = None

    def judge(self, active: int) -> int:
        """Return +1, 0 or -1, the change of the number of streams now."""
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
    """Compares the pace with and without compression once, and chooses the faster."""

    def __init__(self, tally: HostTally, way: Way) -> None:
        self._pace = Pace(tally)
        self._way = way
        self._plain: float | None = None
        self._warm = False
        self._over = False

    def judge(self) -> None:
        """Is called often; acts about every two seconds until the choice is made."""
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
