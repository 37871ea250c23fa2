"""One stream's thread: keeps requests in flight, writes answers to their records, reconnects after a lost connection.

Runs where the shards land; several lanes share the `Work` of one host.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from remote.shared.errors import HostError
from remote.shared.supervised.threads import DeadlineError, Thread
from remote.shared.transfer.landing import Range
from remote.shared.transfer.sender import BLOCK_BYTES, DATA, DIGEST_BYTES, DIGESTS, PACKED, REFUSED
from remote.shared.transfer.stream import Frame, Stream, StreamBrokenError, StreamLost
from remote.shared.transfer.work import Job, Work

IN_FLIGHT_BYTES = 8 << 20
"""Four of OpenSSH's channel windows, so that the sender always has the next request."""
IN_FLIGHT_REQUESTS = 64
PACKED_BYTES = 16 << 20
"""Plain bytes of a compressed answer; shorter answers compress less."""
PIECE_BYTES = 256 << 10
"""Read, hashed and written at once; stays in a core's cache between the three."""
PACKED_SPARE_BYTES = 1 << 20
"""A compressed answer has at most so many bytes more than twice the plain bytes."""
LONGEST_REASON = 500
WAIT_SECONDS = 1.0
PATIENCE = 6
"""Lost connections in a row, without a byte in between, after which a lane gives up: about a minute."""
LONGEST_BACKOFF_SECONDS = 30.0


@dataclass
class Way:
    """How a host's sender is started and asked."""

    command: list[str]
    """Its last argument is the sender's source."""
    root: str
    """Folder of the shards on the source."""
    payload: str = ""
    """Folder on the source that holds `remote/`; empty where nothing is compressed, in flight or at rest."""
    packed: bool = False
    """Whether ranges are requested compressed; changes while lanes work."""


class Lane:
    """One stream's thread. `error` says why it ended early; `round_trip` is known once it is connected."""

    def __init__(self, way: Way, work: Work, name: str) -> None:
        self._way, self._work, self._tally, self._stop = way, work, work.tally, work.pull.stop
        self._name = name
        self._retire = threading.Event()
        self._pending: deque[Job] = deque()
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self._stream: Stream | None = None
        self.connected = threading.Event()
        self.round_trip = 0.0
        self.brought = False
        """Whether it received any bytes of shards."""
        self.error: Exception | None = None

    def start(self) -> None:
        """Begin, on the lane's own thread."""
        self._thread = Thread(self._live, self._name)

    def is_alive(self) -> bool:
        """Return whether the lane's thread has not ended."""
        return self._thread.alive

    def join(self) -> None:
        """Wait for the lane's end after a cut; raises HostError if a write to the destination hangs."""
        try:
            self._thread.join()
        except DeadlineError as error:
            raise HostError(f"A write to the destination hangs: {error}.", remedy="Look at its disk.") from error

    def retire(self) -> None:
        """Take no new work, and end after the answers in flight."""
        self._retire.set()

    def cut(self) -> None:
        """End now; ranges in flight will be requested again."""
        self._retire.set()
        if self._stream is not None:
            self._stream.kill()

    def _live(self) -> None:
        """Work until all is done, the lane retires, or an error ends it."""
        try:
            self._run()
        except Exception as error:
            self.error = error
        finally:
            self.connected.set()

    def _run(self) -> None:
        lost = 0
        while not self._ending() and not self._work.finished:
            received = self._tally.wire_bytes
            try:
                self._connected()
            except StreamLost as error:
                lost = 1 if self._tally.wire_bytes > received else lost + 1
                if lost >= PATIENCE and not self._ending():
                    raise
                self.error = error
                self._stop.wait(min(2.0 ** (lost - 1), LONGEST_BACKOFF_SECONDS) if not self._ending() else 0)
            else:
                self.error = None

    def _ending(self) -> bool:
        return self._retire.is_set() or self._stop.is_set()

    def _connected(self) -> None:
        with Stream(self._way.command, self._way.root, self._way.payload) as self._stream:
            try:
                self._stream.hello()
                self.round_trip = self._stream.round_trip
                self.connected.set()
                while self._fill(self._stream) or self._work.wait(WAIT_SECONDS):
                    if self._stop.is_set() or (self._retire.is_set() and not self._pending):
                        return
                    if self._pending:
                        self._take(self._stream)
            finally:
                while self._pending:
                    self._work.give_back(self._pending.pop())

    def _fill(self, stream: Stream) -> bool:
        """Ask for more once half of what may be in flight has come; returns whether anything is in flight.

        Small records are asked for several at a time: each message wakes ssh, sshd and the sender.
        """
        packed = self._way.packed
        most = 2 * PACKED_BYTES if packed else IN_FLIGHT_BYTES
        ahead = sum(job.wanted.length for job in self._pending if job.wanted)
        if ahead > most // 2:
            return True
        requests: list[dict[str, Any]] = []
        while ahead < most and len(self._pending) < IN_FLIGHT_REQUESTS and not self._ending():
            job = self._work.take(PACKED_BYTES if packed else 0)
            if job is None:
                break
            self._pending.append(job)
            requests.append(_request(job, packed))
            ahead += job.wanted.length if job.wanted else 0
        stream.ask(*requests)
        return bool(self._pending)

    def _take(self, stream: Stream) -> None:
        """Read the answer to the oldest request."""
        frame = stream.frame()
        job = self._pending[0]
        if frame.ticket != job.landing.row.index:
            raise StreamBrokenError(f"The host answered about record {frame.ticket}, but another record was asked for.")
        if frame.kind == REFUSED:
            self._refused(stream, frame)
        elif frame.kind == DIGESTS and job.wanted is None:
            self._take_digests(stream, job, frame.length)
        elif frame.kind == DATA and job.wanted is not None and frame.length == job.wanted.length:
            self._take_data(stream, job, job.wanted)
        elif frame.kind == PACKED and job.wanted is not None:
            self._take_packed(stream, job, job.wanted, frame.length)
        else:
            raise StreamBrokenError(
                f"The host sent an answer of kind {frame.kind} and {frame.length:,} bytes that nothing asked for."
            )

    def _refused(self, stream: Stream, frame: Frame) -> None:
        reason = stream.payload(frame.length)[:LONGEST_REASON].decode("utf-8", "replace")
        job = self._pending.popleft()
        self._work.refuse(job.landing, reason)

    def _take_digests(self, stream: Stream, job: Job, length: int) -> None:
        digests = stream.payload(length, -(-job.compare_bytes // BLOCK_BYTES) * DIGEST_BYTES)
        self._pending.popleft()
        done = self._work.compared(job, digests)
        if not job.landing.repaired:
            self._tally.kept_bytes += job.landing.row.size_bytes - job.landing.missing_bytes
        if done:
            self._work.finish(job.landing)

    def _take_data(self, stream: Stream, job: Job, wanted: Range) -> None:
        landing = job.landing
        self.brought = True
        received = 0
        landing.begin()
        try:
            for piece in stream.pieces(wanted.length, self._buffer):
                landing.write(wanted.offset + received, piece)
                received += len(piece)
                self._tally.wire_bytes += len(piece)
                self._tally.plain_bytes += len(piece)
                self._work.pull.rate.spend(len(piece), self._stop)
        finally:
            complete = landing.end(wanted.offset, wanted.offset + received)
            self._pending.popleft()
            if received < wanted.length:
                self._work.give_back(job, received)
        if complete:
            self._work.finish(landing)

    def _take_packed(self, stream: Stream, job: Job, wanted: Range, length: int) -> None:
        from remote.shared.codec.piece import DamagedError, split_pieces

        payload = stream.payload(length, 2 * wanted.length + PACKED_SPARE_BYTES)
        self._tally.wire_bytes += length
        self._work.pull.rate.spend(length, self._stop)
        landing, offset = job.landing, wanted.offset
        self.brought = True
        landing.begin()
        try:
            for piece in split_pieces(payload, wanted.length):
                landing.write(offset, memoryview(piece))
                offset += len(piece)
        except DamagedError as error:
            raise StreamBrokenError(f"A compressed range arrived damaged ({error}).") from error
        finally:
            complete = landing.end(wanted.offset, offset)
            self._pending.popleft()
            received = offset - wanted.offset
            self._tally.plain_bytes += received
            if received < wanted.length:
                self._work.give_back(job, received)
        if complete:
            self._work.finish(landing)


def _request(job: Job, packed: bool) -> dict[str, Any]:
    row = job.landing.row
    request: dict[str, Any] = {"ticket": row.index, "name": job.landing.name, "size": row.size_bytes}
    if job.wanted is None:
        return {**request, "do": "digests", "length": job.compare_bytes}
    do = "packed" if packed else "read"
    return {**request, "do": do, "offset": job.wanted.offset, "length": job.wanted.length}
