"""All streams of one host: how many, started and retired as the throughput asks for.

Runs where the shards land. Every host has a `HostPull` of its own in a thread of its own, so that a slow or lost one
holds back nobody.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from remote.errors import HostError, RoostError
from remote.messages.extract import ShardRow
from remote.messages.transfer import DeliveredRow
from remote.transfer.delivery import Delivery, Ready
from remote.transfer.destination import Destination
from remote.transfer.lane import Lane, Tally, Trade
from remote.transfer.rate import RateLimit
from remote.transfer.work import Work

CHANNEL_WINDOW_BYTES = 2 << 20
"""OpenSSH's flow control lets so much be under way in a channel: a stream's limit is window / round trip."""
WORTHWHILE_BYTES_PER_SECOND = 250e6
"""What streams are added for at the start; measuring goes on from there."""
MOST_STREAMS = 8
FIRST_STREAMS = 2
"""On a LAN: the second one works while the first waits for a disk or a core."""
MEASURE_SECONDS = 2.0
STEER_SECONDS = 0.25
GAIN = 1.15
"""Another stream stays if throughput grew by this factor over what it was without it."""


class LostHostError(HostError, ConnectionError):
    """The connection to a host is gone and did not come back."""

    kind = "connection-lost"


@dataclass(frozen=True)
class Source:
    """A host that shards are pulled from."""

    name: str
    command: list[str]
    """Starts a sender there: an argv whose last argument is the sender's source, quoted for ssh where it is ssh."""
    root: str
    """Folder of the run's shards over there; `~` is the home directory there."""


@dataclass(frozen=True)
class Limits:
    """What a person set; None is found by measuring."""

    streams: int | None = None
    bytes_per_second: float | None = None


@dataclass
class HostReport:
    """What one pull from one host came to."""

    host: str
    tally: Tally = field(default_factory=Tally)
    delivered: int = 0
    delivered_bytes: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    """Records given up, with the reason."""
    error: RoostError | None = None
    streams: int = 0
    """At most at once."""
    seconds: float = 0.0


def streams_for(round_trip: float) -> int:
    """How many streams to begin with at this round trip (seconds)."""
    needed = math.ceil(WORTHWHILE_BYTES_PER_SECOND * round_trip / CHANNEL_WINDOW_BYTES)
    return max(FIRST_STREAMS, min(MOST_STREAMS, needed))


class HostPull:
    """Pulls what `rows` offers from one source into the destination."""

    def __init__(
        self,
        source: Source,
        destination: Destination,
        delivery: Delivery,
        limits: Limits,
        rate: RateLimit,
        stop: threading.Event,
    ) -> None:
        self.report = HostReport(source.name)
        self._source = source
        self._destination = destination
        self._delivery = delivery
        self._limits = limits
        self._rate = rate
        self._stop = stop
        self._lanes: list[Lane] = []

    def run(self, rows: Iterable[ShardRow], on_delivered: Callable[[list[DeliveredRow]], None]) -> HostReport:
        """Pull until everything is delivered or given up; an error that ends it early is in the report."""
        began = time.monotonic()
        work = Work(rows, self._destination)

        def delivered(done: list[DeliveredRow]) -> None:
            self.report.delivered += len(done)
            self.report.delivered_bytes += sum(row.size_bytes for row in done)
            on_delivered(done)

        trade = Trade(
            command=self._source.command,
            root=self._source.root,
            work=work,
            tally=self.report.tally,
            limit=self._rate,
            stop=self._stop,
            hand_in=lambda landing: self._delivery.hand_in(Ready(landing, self._source.name, delivered)),
        )
        try:
            self._steer(trade)
        finally:
            for lane in self._lanes:
                lane.cut()
            for lane in self._lanes:
                lane.join()
            work.abandon()
        self.report.failed.update(work.failed)
        self.report.error = self._error(work)
        self.report.seconds += time.monotonic() - began
        return self.report

    def _steer(self, trade: Trade) -> None:
        """Start lanes and change their number until the work is done, or nobody works any more."""
        self._start(trade)
        first = self._lanes[0]
        while not first.connected.wait(0.05) and not self._over(trade):
            pass
        wanted = self._limits.streams or streams_for(first.round_trip)
        while len(self._lanes) < wanted and first.error is None:
            self._start(trade)
        climb = None if self._limits.streams else Climb(trade.tally)
        while not self._over(trade) and not trade.work.wait_finished(STEER_SECONDS):
            if climb is not None:
                self._adapt(trade, climb)

    def _adapt(self, trade: Trade, climb: Climb) -> None:
        active = [lane for lane in self._lanes if lane.is_alive()]
        change = climb.judge(len(active))
        if change > 0:
            self._start(trade)
        elif change < 0 and len(active) > 1:
            active[-1].retire()

    def _start(self, trade: Trade) -> None:
        lane = Lane(trade, f"{self._source.name}-{len(self._lanes)}")
        self._lanes.append(lane)
        lane.start()
        alive = sum(1 for one in self._lanes if one.is_alive())
        self.report.streams = max(self.report.streams, alive)

    def _over(self, trade: Trade) -> bool:
        return (
            self._stop.is_set()
            or trade.work.finished
            or self._delivery.error is not None
            or not any(lane.is_alive() for lane in self._lanes)
        )

    def _error(self, work: Work) -> RoostError | None:
        if work.finished or self._stop.is_set() or self._delivery.error is not None:
            return None
        errors = [lane.error for lane in self._lanes if lane.error is not None]
        if not errors:
            return LostHostError("The streams ended before the work was done.", remedy="Run it again.")
        if isinstance(errors[0], RoostError):
            return errors[0]
        if isinstance(errors[0], OSError):
            return HostError(f"{self._destination.root} could not be written: {errors[0].strerror}.")
        return LostHostError(
            f"The connection was lost and did not come back: {errors[0]}.",
            remedy="The next pull goes on where this one stopped.",
        )


class Climb:
    """Finds the number of streams by trying one more, and keeping it only where it helped."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._since = time.monotonic()
        self._bytes = tally.wire_bytes
        self._best = 0.0
        self._tried = 0
        self._settled = False

    def judge(self, active: int) -> int:
        """+1, 0 or -1: how the number of streams is to change now; asks for a measurement's time in between."""
        now = time.monotonic()
        if self._settled or now - self._since < MEASURE_SECONDS:
            return 0
        rate = (self._tally.wire_bytes - self._bytes) / (now - self._since)
        self._since, self._bytes = now, self._tally.wire_bytes
        if not self._tried or rate > self._best * GAIN:
            self._best = max(self._best, rate)
            self._tried = active + 1
            self._settled = active >= MOST_STREAMS
            return 0 if self._settled else 1
        self._settled = True
        return -1
