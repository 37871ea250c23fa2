"""All streams of one host. Streams are started and retired according to the measured throughput.

Runs where the shards land. Every host has its own `HostPull` on its own thread, so that a slow or lost host does not
delay the others.
"""

from __future__ import annotations

import time

from remote.shared.errors import HostError, RoostError
from remote.shared.messages.transfer import HostTally
from remote.shared.transfer.destination import cannot_write
from remote.shared.transfer.lane import Lane, Way
from remote.shared.transfer.tuning import MOST_STREAMS, WAITING, Climb, Cores, Trial, streams_for
from remote.shared.transfer.work import Pull, Work

STEER_SECONDS = 0.25
EARLY_SECONDS = 0.25
"""If the first stream is not connected by then although the cores idle, the round trip is long: others are started."""


class LostHostError(HostError, ConnectionError):
    """The connection to a host is gone and did not come back."""

    kind = "connection-lost"


class HostPull:
    """Brings one host's offered records; `bring` may be called repeatedly, and the tally continues."""

    def __init__(self, name: str, pull: Pull, tally: HostTally) -> None:
        self._name = name
        self._pull = pull
        self._limits = pull.wish.limits
        self._tally = tally
        self._lanes: list[Lane] = []

    def bring(self, way: Way) -> RoostError | None:
        """Pull until every offered record is durable or refused; returns the error if it ends earlier."""
        began = time.monotonic()
        self._way = way
        self._work = Work(self._name, self._pull, self._tally)
        self._lanes = []
        try:
            self._steer()
        finally:
            for lane in self._lanes:
                lane.cut()
            for lane in self._lanes:
                lane.join()
            self._tally.streams = max(self._tally.streams, sum(lane.brought for lane in self._lanes))
            self._tally.seconds += time.monotonic() - began
        error = self._error()
        self._pull.books.give_back(self._name)
        self._await_delivery()
        return error

    def _steer(self) -> None:
        """Start lanes and change their number until the work is done or no lane lives."""
        self._start()
        self._reach(self._lanes[0])
        climb = None if self._limits.streams else Climb(self._tally)
        trial = Trial(self._tally, self._way) if self._limits.compress == "auto" else None
        while not self._over() and not self._work.wait_finished(STEER_SECONDS):
            if climb is not None and not climb.settled:
                self._adapt(climb)
            elif trial is not None:
                trial.judge()
        self._tally.compressed = self._way.packed

    def _reach(self, first: Lane) -> None:
        """Connect as many streams as the round trip needs, and end those that were started before it was known."""
        cores = Cores()
        while not first.connected.wait(EARLY_SECONDS) and not self._over():
            if self._limits.streams is None and cores.at_work() < WAITING:
                while len(self._lanes) < MOST_STREAMS:
                    self._start()
        if first.error is not None:
            return
        wanted = self._limits.streams or streams_for(first.round_trip)
        while len(self._lanes) < wanted:
            self._start()
        for lane in self._lanes[wanted:]:
            if lane.connected.is_set():
                lane.retire()
            else:
                lane.cut()

    def _await_delivery(self) -> None:
        """Return once every record that was handed in is durable, or the pull was stopped."""
        while not self._pull.books.is_settled(self._name) and not self._pull.stop.is_set():
            self._pull.books.wait(STEER_SECONDS)

    def _adapt(self, climb: Climb) -> None:
        active = [lane for lane in self._lanes if lane.is_alive()]
        change = climb.judge(len(active))
        if change > 0:
            self._start()
        elif change < 0 and len(active) > 1:
            active[-1].retire()

    def _start(self) -> None:
        lane = Lane(self._way, self._work, f"{self._name}-{len(self._lanes)}")
        self._lanes.append(lane)
        lane.start()

    def _over(self) -> bool:
        return self._pull.stop.is_set() or self._work.finished or not any(lane.is_alive() for lane in self._lanes)

    def _error(self) -> RoostError | None:
        if self._work.finished or self._pull.stop.is_set():
            return None
        if self._work.error is not None:
            return cannot_write(self._pull.destination, self._work.error)
        errors = [lane.error for lane in self._lanes if lane.error is not None]
        if not errors:
            return LostHostError("The streams from the host ended before all records had come.", remedy="Run it again.")
        if isinstance(errors[0], RoostError):
            return errors[0]
        if isinstance(errors[0], OSError):
            return cannot_write(self._pull.destination, errors[0])
        return LostHostError(
            f"The connection was lost and did not come back: {errors[0]}.",
            remedy="The next pull goes on where this one stopped.",
        )
