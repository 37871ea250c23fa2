"""All streams of one host: how many, started and retired as the throughput asks for.

Runs where the shards land. Every host has a `HostPull` of its own in a thread of its own, so that a slow or lost one
holds back nobody.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from remote.shared.errors import HostError, RoostError
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.transfer import DeliveredRow
from remote.shared.transfer.delivery import Delivery, Ready
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.landing import Landing
from remote.shared.transfer.lane import Lane, Packing, Tally, Trade
from remote.shared.transfer.rate import RateLimit
from remote.shared.transfer.tuning import MOST_STREAMS, WAITING, Climb, Cores, Trial, streams_for
from remote.shared.transfer.work import Work

STEER_SECONDS = 0.25
EARLY_SECONDS = 0.25
"""A first stream that is not connected by then, while the cores idle, has a long way: others need not wait."""


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
    payload: str = ""
    """Folder over there that holds `remote/`: for what is compressed, in flight or at rest."""


Compress = Literal["never", "auto", "always"]


@dataclass(frozen=True)
class Limits:
    """What a person set; None is found by measuring."""

    streams: int | None = None
    bytes_per_second: float | None = None
    compress: Compress = "never"
    """On the wire; `auto` tries and keeps what brings more plain bytes a second."""


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
    """That brought anything."""
    seconds: float = 0.0
    compressed: bool = False
    """Whether ranges came compressed in the end."""


def cannot_write(destination: Destination, error: OSError) -> HostError:
    """The destination is full, or gone."""
    free = f" ({destination.free_bytes() / 1e9:.1f} GB free)" if error.errno == errno.ENOSPC else ""
    return HostError(
        f"{destination.name} could not be written: {error.strerror or error}{free}.",
        remedy="What was delivered is in its ledger; make room, and the next pull goes on from there.",
    )


class HostPull:
    """Pulls from one host into the destination; may be run again and again, the report goes on."""

    def __init__(
        self,
        name: str,
        destination: Destination,
        delivery: Delivery,
        limits: Limits,
        rate: RateLimit,
        stop: threading.Event,
    ) -> None:
        self.report = HostReport(name)
        self._destination = destination
        self._delivery = delivery
        self._limits = limits
        self._rate = rate
        self._stop = stop
        self._lanes: list[Lane] = []
        self._in_hand = 0
        """Records that are handed in and not durable yet."""
        self._settled = threading.Condition()

    def run(
        self, source: Source, rows: Iterable[ShardRow], on_delivered: Callable[[list[DeliveredRow]], None]
    ) -> HostReport:
        """Pull until everything is delivered or given up; an error that ends it early is in the report."""
        began = time.monotonic()
        work = Work(rows, self._destination)
        self._lanes = []

        def delivered(done: list[DeliveredRow]) -> None:
            self.report.delivered += len(done)
            self.report.delivered_bytes += sum(row.size_bytes for row in done)
            on_delivered(done)
            with self._settled:
                self._in_hand -= len(done)
                self._settled.notify_all()

        def hand_in(landing: Landing) -> None:
            with self._settled:
                self._in_hand += 1
            self._delivery.hand_in(Ready(landing, source.name, delivered))

        packing = Packing(source.payload, active=self._limits.compress == "always")
        trade = Trade(
            command=source.command,
            root=source.root,
            work=work,
            tally=self.report.tally,
            limit=self._rate,
            stop=self._stop,
            hand_in=hand_in,
            packing=packing,
        )
        try:
            self._steer(trade)
        finally:
            for lane in self._lanes:
                lane.cut()
            for lane in self._lanes:
                lane.join()
            self.report.streams = max(self.report.streams, sum(lane.brought for lane in self._lanes))
            work.abandon()
        self._await_delivery()
        self.report.failed.update(work.failed)
        self.report.error = self._error(work)
        self.report.seconds += time.monotonic() - began
        return self.report

    def _steer(self, trade: Trade) -> None:
        """Start lanes and change their number until the work is done, or nobody works any more."""
        self._start(trade)
        self._reach(trade, self._lanes[0])
        climb = None if self._limits.streams else Climb(trade.tally)
        trial = Trial(trade.tally, trade.packing) if self._limits.compress == "auto" else None
        while not self._over(trade) and not trade.work.wait_finished(STEER_SECONDS):
            if climb is not None and not climb.settled:
                self._adapt(trade, climb)
            elif trial is not None:
                trial.judge()
        self.report.compressed = trade.packing.active

    def _reach(self, trade: Trade, first: Lane) -> None:
        """Connect as many streams as the round trip asks for; those begun before it was known may be too many."""
        cores = Cores()
        while not first.connected.wait(EARLY_SECONDS) and not self._over(trade):
            if self._limits.streams is None and cores.at_work() < WAITING:
                while len(self._lanes) < MOST_STREAMS:
                    self._start(trade)
        if first.error is not None:
            return
        wanted = self._limits.streams or streams_for(first.round_trip)
        while len(self._lanes) < wanted:
            self._start(trade)
        for lane in self._lanes[wanted:]:
            if lane.connected.is_set():
                lane.retire()
            else:
                lane.cut()

    def _await_delivery(self) -> None:
        """Return once what was handed in is durable, or will not be."""
        with self._settled:
            while self._in_hand and self._delivery.error is None and not self._stop.is_set():
                self._settled.wait(STEER_SECONDS)

    def _adapt(self, trade: Trade, climb: Climb) -> None:
        active = [lane for lane in self._lanes if lane.is_alive()]
        change = climb.judge(len(active))
        if change > 0:
            self._start(trade)
        elif change < 0 and len(active) > 1:
            active[-1].retire()

    def _start(self, trade: Trade) -> None:
        lane = Lane(trade, f"{self.report.host}-{len(self._lanes)}")
        self._lanes.append(lane)
        lane.start()

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
        if work.error is not None:
            return cannot_write(self._destination, work.error)
        errors = [lane.error for lane in self._lanes if lane.error is not None]
        if not errors:
            return LostHostError("The streams ended before the work was done.", remedy="Run it again.")
        if isinstance(errors[0], RoostError):
            return errors[0]
        if isinstance(errors[0], OSError):
            return cannot_write(self._destination, errors[0])
        return LostHostError(
            f"The connection was lost and did not come back: {errors[0]}.",
            remedy="The next pull goes on where this one stopped.",
        )
