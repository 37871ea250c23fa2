"""The work left for one host: records become ranges, and ranges become requests of the next free stream.

Thread-safe; shared by the streams of one host. Ranges of a lost stream are given to another stream.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from remote.shared.messages.transfer import DeliveredRow, HostTally, Wish
from remote.shared.transfer.books import Books
from remote.shared.transfer.bounds import Bounds
from remote.shared.transfer.delivery import Delivery, Ready
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.landing import Landing, Range
from remote.shared.transfer.rate import RateLimit


@dataclass(frozen=True)
class Pull:
    """The parts that all hosts of one pull share."""

    destination: Destination
    wish: Wish
    bounds: Bounds
    books: Books
    delivery: Delivery
    rate: RateLimit
    stop: threading.Event


@dataclass(frozen=True)
class Job:
    """One request: a range of a record, or (None) the digests of an earlier pull's part of it."""

    landing: Landing
    wanted: Range | None
    compare_bytes: int = 0


class Work:
    """One host's records in the books, as requests."""

    def __init__(self, host: str, pull: Pull, tally: HostTally) -> None:
        self.pull = pull
        self.tally = tally
        self._host = host
        self._books = pull.books
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self.error: OSError | None = None
        """Why no further record can be begun: the destination is full, or cannot be written."""

    def take(self, most_bytes: int = 0) -> Job | None:
        """Return the next request, or None if there is none now.

        Blocks that follow each other are joined to one request of at most `most_bytes`.
        """
        with self._changed:
            if not self._jobs and not self._begin():
                return None
            job = self._jobs.popleft()
            while self._jobs and (joined := _joined(job, self._jobs[0], most_bytes)):
                self._jobs.popleft()
                job = joined
            return job

    def wait(self, seconds: float) -> bool:
        """Wait until there may be another request; return False once all is done."""
        with self._changed:
            if not self.finished and not self._jobs:
                self._changed.wait(seconds)
            return not self.finished

    def wait_finished(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end; return whether it has come."""
        with self._changed:
            return self._changed.wait_for(lambda: self.finished, seconds)

    @property
    def finished(self) -> bool:
        """Whether every record has landed or was refused."""
        return self.error is None and self._books.is_fetched(self._host)

    def give_back(self, job: Job, received: int = 0) -> None:
        """Queue again, first of all, what a lost stream had not received of its request."""
        wanted = job.wanted
        if wanted is not None:
            wanted = Range(wanted.offset + received, wanted.length - received)
        with self._changed:
            if not job.landing.settled:
                self._jobs.appendleft(Job(job.landing, wanted, job.compare_bytes))
            self._changed.notify_all()

    def compared(self, job: Job, digests: bytes) -> bool:
        """Keep the blocks with the right digests and queue the others; return whether nothing is missing."""
        missing = job.landing.keep_equal(digests)
        with self._changed:
            self._jobs.extendleft(Job(job.landing, wanted) for wanted in reversed(missing))
            self._changed.notify_all()
        return not missing

    def finish(self, landing: Landing) -> None:
        """Hand a record whose bytes are all here to the delivery, or find out which of its blocks are wrong."""
        if landing.settled:
            return
        if landing.is_right():
            problem = self.pull.bounds.misfit(landing.row, landing.part)
            if problem:
                self.refuse(landing, problem)
            elif self._landed(landing):
                self.pull.delivery.hand_in(Ready(landing, self._host, lambda row: self._delivered(landing, row)))
        elif landing.repaired:
            self.refuse(landing, "its bytes on the host differ from the host's own ledger")
        else:
            landing.repaired = True
            with self._changed:
                self._jobs.appendleft(Job(landing, None, landing.row.size_bytes))
                self._changed.notify_all()

    def refuse(self, landing: Landing, reason: str) -> None:
        """Give the record up, with the reason."""
        with self._changed:
            if self._settle(landing):
                self.tally.failed[landing.row.index] = reason
                self._books.refuse(self._host, landing.row)
                self._tell_end()

    def _landed(self, landing: Landing) -> bool:
        """Return True to the first caller only; that caller hands the record to the delivery."""
        with self._changed:
            if not self._settle(landing):
                return False
            self._books.land(self._host, landing.row)
            self._tell_end()
            return True

    def _delivered(self, landing: Landing, row: DeliveredRow) -> None:
        self.tally.delivered += 1
        self.tally.delivered_bytes += row.size_bytes
        self.tally.not_durable += not row.durable
        self._books.deliver(self._host, landing.row, durable=row.durable)

    def _tell_end(self) -> None:
        """Wake the waiting threads if all is done. To wake them for each record would cost more than its ledger row."""
        if self.finished:
            self._changed.notify_all()

    def _settle(self, landing: Landing) -> bool:
        """Mark the record as settled and drop its requests; return False if it was settled before."""
        if landing.settled:
            return False
        landing.settled = True
        self._jobs = deque(job for job in self._jobs if job.landing is not landing)
        return True

    def _begin(self) -> bool:
        """Begin the next record; return False if no record can be claimed now."""
        row = self._books.claim(self._host)
        if row is None:
            self._tell_end()
            return False
        try:
            landing = self.pull.destination.landing(row)
            left = landing.left()
        except OSError as error:
            self.error = error
            raise
        if left:
            self._jobs.append(Job(landing, None, left))
        else:
            self._jobs.extend(Job(landing, wanted) for wanted in landing.all_ranges())
        return True


def _joined(one: Job, other: Job, most_bytes: int) -> Job | None:
    """Return both requests as one, if they are for neighbouring bytes of one record and at most `most_bytes`."""
    if one.landing is not other.landing or one.wanted is None or other.wanted is None:
        return None
    if one.wanted.offset + one.wanted.length != other.wanted.offset:
        return None
    length = one.wanted.length + other.wanted.length
    return Job(one.landing, Range(one.wanted.offset, length)) if length <= most_bytes else None
