"""Takes the rows of each forward pass: assigns them to records, waits for room, and sends them. Inside SGLang.

Runs on a thread of its own, so that files, locks and a full dump directory cost the forward thread nothing. Waiting
forward passes lie on the device in a short queue. If the queue is full, the forward pass waits: that is the
back-pressure, and it is counted. The wait has a limit, because SGLang's watchdog takes a forward pass that waits for
`--watchdog-timeout` (300 s) for a hang, and ends the server.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from remote.capture import VERSION
from remote.capture.batch import Segment
from remote.capture.environment import PATIENCE_SECONDS, Settings
from remote.capture.gather import Gather
from remote.capture.place import Place
from remote.capture.record import Record, write_cause
from remote.capture.ring import Ring, Waits
from remote.capture.sender import Sender
from remote.capture.space import Space, Unfinished
from remote.capture.writers import Writers
from remote.shared.errors import RecordError
from remote.shared.shard.layout import Layout
from remote.shared.shard.names import WHOLE
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import Sessions
from remote.shared.supervised.threads import Thread, log_end

logger = logging.getLogger(__name__)

STALE_SECONDS = 60.0
"""A record without new rows for this long is given up: its request was aborted, or its id announces too many rows."""
_PASSES = 2
"""The number of gathered forward passes that may wait on the device."""
_REMEMBERED = 65_536
_DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


@dataclass
class Totals:
    """The number of records that were written, and that failed, since the process began."""

    records: int = 0
    failed: int = 0
    rows: int = 0
    last_cause: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Admission:
    """Takes closed gathers in order. The forward thread calls `put`; everything else runs on this class's thread."""

    def __init__(self, settings: Settings, place: Place, *, sglang: str, pinned: bool) -> None:
        self.totals = Totals()
        self.waits = Waits()
        """The forward thread's waits for a place in the queue."""
        self.ring = Ring(settings.pinned_bytes, pinned)
        self.space = Space(settings.dump_dir, settings.high_water_bytes, place.writers)
        self.writers = Writers(self.ring, settings.writers)
        self._directory = settings.dump_dir
        self._place = place
        self._sender = Sender(self.ring, self.writers, place.local)
        self._sessions = Sessions(settings.dump_dir)
        self._records: dict[str, Record] = {}
        self._over: OrderedDict[str, None] = OrderedDict()
        self._busy = False
        self._stalled = False
        self._idle_since = time.monotonic()
        """When the thread last became idle: waits for a full directory do not count towards `STALE_SECONDS`."""
        self._queue: queue.Queue[Gather] = queue.Queue(_PASSES)
        self._about = {
            "boundaries": json.dumps(list(place.local)),
            "record_boundaries": json.dumps(list(place.boundaries)),
            "final": settings.final,
            "sglang": sglang,
            "capture": VERSION,
        }
        Thread(self._run, "roost-capture-admission", log_end)

    @property
    def in_flight(self) -> int:
        return len(self._records)

    def put(self, gather: Gather) -> None:
        """Queue a closed gather, after waiting for a place; fails its records if the wait takes too long."""
        if not self._queue.full():
            self._queue.put(gather)
            return
        since = time.monotonic()
        try:
            self._queue.put(gather, timeout=0 if self._stalled else PATIENCE_SECONDS)
        except queue.Full:
            self._stalled = True
            self._give_up(gather.segments, self._why_full())
        self.waits.add(since)

    def _why_full(self) -> str:
        return (
            f"Rows did not move for {PATIENCE_SECONDS:.0f} s: no dump was taken from {self._directory}, which is"
            " at its high-water mark, or it cannot be written."
        )

    def expire(self) -> None:
        """Fail records that got no row for `STALE_SECONDS`. Any thread may call this."""
        if self._busy:
            return
        now = time.monotonic()
        for record in list(self._records.values()):
            if not record.complete and now - max(record.touched_at, self._idle_since) > STALE_SECONDS:
                wanted = record.request.rows
                record.fail(f"{record.admitted} of {wanted} rows came, and no more for {STALE_SECONDS:.0f} s.")
                record.end_if_failed()

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            gather = self._queue.get()
            self._busy, self._stalled = True, False
            try:
                self._take(gather)
            except Exception as error:
                logger.exception("Roost's capture could not take a forward pass's rows")
                self._give_up(gather.segments, f"Capture failed: {type(error).__name__}: {error}.")
            del gather  # its memory on the device
            self._idle_since = time.monotonic()
            self._busy = not self._queue.empty()

    def _take(self, gather: Gather) -> None:
        if gather.cause:
            self._give_up(gather.segments, gather.cause)
            return
        states = self._sender.begin(gather)
        for segment in gather.segments:
            record = self._admit(segment, states)
            if record is not None:
                self._sender.send(states, record, segment)

    def _admit(self, segment: Segment, states: torch.Tensor) -> Record | None:
        """Return the segment's record, with room reserved for it in the dump directory.

        Returns None if the record has ended or is refused, or if its session is not registered (a made-up id).
        """
        rid = str(segment.request)
        if rid in self._over or segment.request.nonce not in self._sessions:
            return None
        record = self._records.get(rid)
        begun = record is not None
        if record is None:
            record = self._begin(segment.request, states)
        try:
            record.admit(segment.first, segment.rows)
            if not begun:
                self.space.reserve(record.path.name, record.layout.size, self._unfinished)
        except RecordError as error:
            record.fail(str(error))
            record.end_if_failed()
            return None
        return record

    def _begin(self, request: RequestId, states: torch.Tensor) -> Record:
        dtype = _DTYPES.get(states.dtype)
        if dtype is None:
            raise RecordError(f"A shard cannot hold states of dtype {states.dtype}.")
        layout = Layout(request.rows, states.shape[1], states.shape[2], dtype)
        if layout.row_bytes > self.ring.slab_bytes:
            raise RecordError(f"A row takes {layout.row_bytes} bytes, and pinned memory holds {self.ring.slab_bytes}.")
        path = self._directory / f"{request}{self._place.suffix}{WHOLE}"
        record = Record(request, path, layout, self._place.local, self._about, self._ended)
        self._records[str(request)] = record
        return record

    def _unfinished(self) -> Unfinished:
        live = list(self._records.values())
        waiting = {record.path.name for record in live if not record.complete and not record.cause}
        return Unfinished({record.path.name for record in live}, waiting)

    def _give_up(self, segments: Sequence[Segment], cause: str) -> None:
        for segment in segments:
            rid = str(segment.request)
            record = self._records.get(rid)
            if record is not None:
                record.fail(cause)
                record.end_if_failed()
            elif rid not in self._over and segment.request.nonce in self._sessions:
                write_cause(self._directory, segment.request, cause)
                with self.totals.lock:
                    self._remember(rid)
                    self.totals.failed += 1
                    self.totals.last_cause = cause

    def _ended(self, record: Record) -> None:
        rid = str(record.request)
        with self.totals.lock:
            self._records.pop(rid, None)
            self._remember(rid)
            if record.cause:
                self.totals.failed += 1
                self.totals.last_cause = record.cause
            else:
                self.totals.records += 1
                self.totals.rows += record.request.rows

    def _remember(self, rid: str) -> None:
        """Remember a finished request: SGLang may recompute a retracted request, and the dump must stay as it is."""
        self._over[rid] = None
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
