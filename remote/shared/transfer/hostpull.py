"""All streams of one host: how many, started and retired as the throughput asks for.

Runs where the shards land. Every host has a `HostPull` of its own in a thread of its own, so that a slow or lost one
holds back nobody.
"""

from __future__ import annotations

import threading
import time

from remote.shared.errors import HostError, RoostError
from remote.shared.messages.transfer import DeliveredRow, HostTally, Limits
from remote.shared.transfer.books import Books
from remote.shared.transfer.bounds import Bounds
from remote.shared.transfer.delivery import Delivery, Ready
from remote.shared.transfer.destination import Destination, cannot_write
from remote.shared.transfer.landing import Landing
from remote.shared.transfer.lane import Lane, Packing, Trade
from remote.shared.transfer.rate import RateLimit
from remote.shared.transfer.tuning import MOST_STREAMS, WAITING, Climb, Cores, Trial, streams_for
from remote.shared.transfer.work import Work

STEER_SECONDS = 0.25
EARLY_SECONDS = 0.25
"""A first stream that is not connected by then, while the cores idle, has a long way: others need not wait."""


class LostHostError(HostError, ConnectionError):
    """The connection to a host is gone and did not come back."""

    kind = "connection-lost"


class HostPull:
    """Brings what the books offer of one host; `bring` may be called again and again, the tally goes on."""

    def __init__(
        self,
        name: str,
        destination: Destination,
        books: Books,
        delivery: Delivery,
        limits: Limits,
        rate: RateLimit,
        bounds: Bounds,
        tally: HostTally,
        stop: threading.Event,
    ) -> None:
        self._name = name
        self._destination = destination
        self._books = books
        self._delivery = delivery
        self._limits = limits
        self._rate = rate
        self._bounds = bounds
        self._tally = tally
        self._stop = stop
        self._lanes: list[Lane] = []

    def bring(self, command: list[str], root: str, payload: str) -> RoostError | None:
        """Pull until every offered record is durable or refused; returns the error that ends it earlier.

        `command` starts a sender, `root` is the folder of the shards on its host, `payload` a folder there that holds
        `remote/` ("" where nothing is compressed, in flight or at rest).
        """
        began = time.monotonic()
        work = Work(self._name, self._books, self._destination, self._tally)
        self._lanes = []
        trade = Trade(
            command=command,
            root=root,
            work=work,
            tally=self._tally,
            limit=self._rate,
            stop=self._stop,
            hand_in=self._hand_in,
            misfit=lambda landing: self._bounds.misfit(landing.row, landing.part),
            packing=Packing(payload, active=self._limits.compress == "always"),
        )
        try:
            self._steer(trade)
        finally:
            for lane in self._lanes:
                lane.cut()
            for lane in self._lanes:
                lane.join()
            self._tally.streams = max(self._tally.streams, sum(lane.brought for lane in self._lanes))
            self._tally.seconds += time.monotonic() - began
        error = self._error(work)
        self._books.give_back(self._name)
        self._await_delivery()
        return error

    def _hand_in(self, landing: Landing) -> None:
        self._delivery.hand_in(Ready(landing, self._name, lambda row: self._delivered(landing, row)))

    def _delivered(self, landing: Landing, row: DeliveredRow) -> None:
        self._tally.delivered += 1
        self._tally.delivered_bytes += row.size_bytes
        self._tally.not_durable += not row.durable
        self._books.deliver(self._name, landing.row, durable=row.durable)

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
        self._tally.compressed = trade.packing.active

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
        """Return once every record that was handed in is durable, or will not be."""
        while not self._books.is_settled(self._name) and self._delivery.error is None and not self._stop.is_set():
            self._books.wait(STEER_SECONDS)

    def _adapt(self, trade: Trade, climb: Climb) -> None:
        active = [lane for lane in self._lanes if lane.is_alive()]
        change = climb.judge(len(active))
        if change > 0:
            self._start(trade)
        elif change < 0 and len(active) > 1:
            active[-1].retire()

    def _start(self, trade: Trade) -> None:
        lane = Lane(trade, f"{self._name}-{len(self._lanes)}")
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
