"""Capture in one SGLang process: what happens before, during and after each forward pass. Inside SGLang.

The model's hooks call it on the forward thread; nothing that goes wrong here reaches SGLang, it fails the records
concerned. Reading a state can be a collective: whether it is read follows from the batch alone, which all ranks of
a group share, and never from what this rank's disk or memory is like.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch

from remote.capture import VERSION
from remote.capture.batch import Segment, segments
from remote.capture.environment import Settings
from remote.capture.families import State, carries_stream, state_after
from remote.capture.gather import Gather
from remote.capture.layout import Layout
from remote.capture.place import Place
from remote.capture.record import Record, write_cause
from remote.capture.request_id import RequestId
from remote.capture.ring import Ring
from remote.capture.sender import Sender
from remote.capture.space import Space, Unfinished
from remote.capture.writers import Writers
from remote.errors import RecordError

logger = logging.getLogger(__name__)

STALE_SECONDS = 60.0
"""A record whose next rows have not come for so long is given up: its request was aborted, or its id says too many."""
_REMEMBERED = 65_536
_DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


@dataclass
class Totals:
    """What this process has done."""

    records: int = 0
    failed: int = 0
    rows: int = 0
    seconds: float = 0.0
    last_cause: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Capture:
    """One per model; `before`, `at_boundary` and `after` run on the forward thread."""

    def __init__(self, settings: Settings, place: Place, *, sglang: str, pinned: bool, every_rank_reads: bool) -> None:
        """`every_rank_reads`: ranks hold different batches, and reading a state is a collective among them."""
        self.totals = Totals()
        self.ring = Ring(settings.pinned_bytes, pinned)
        self.space = Space(settings.dump_dir, settings.high_water_bytes, place.writers)
        self.writers = Writers(self.ring, settings.writers)
        self.place = place
        self._settings = settings
        self._every_rank_reads = every_rank_reads
        self._sender = Sender(self.ring, self.writers)
        self._records: dict[str, Record] = {}
        self._over: OrderedDict[str, None] = OrderedDict()
        self._batch: Any = None
        self._gather: Gather | None = None
        self._reads = False
        self._about = {
            "boundaries": json.dumps(list(place.boundaries if place.parts == 1 else place.local)),
            "final": settings.final,
            "sglang": sglang,
            "capture": VERSION,
        }
        if place.parts > 1:
            self._about["record_boundaries"] = json.dumps(list(place.boundaries))

    @property
    def in_flight(self) -> int:
        return len(self._records)

    def before(self, forward_batch: Any) -> None:
        """Settle what this forward pass holds for us; costs next to nothing where that is nothing."""
        self._batch, self._gather, self._reads = forward_batch, None, False
        collective = carries_stream(forward_batch)
        try:
            found = segments(forward_batch)
        except Exception:
            logger.exception("Roost's capture could not read a forward batch")
            found = []
        if found and self.place.writes:
            self._gather = Gather(found, self.place.local)
        self._reads = self._gather is not None or (collective and (bool(found) or self._every_rank_reads))

    def at_block(self, boundary: int, output: Any) -> None:
        """A block has returned `output`; the state behind it is boundary `boundary`."""
        if not self._reads:
            return
        since = time.perf_counter()
        try:
            state = state_after(output, self._batch)
            if self._gather is not None and not (self._settings.final == "post" and boundary == self.place.depth):
                self._gather.put(self.place.local.index(boundary), state)
        except Exception as error:
            self._fail_pass(boundary, error)
        self.totals.seconds += time.perf_counter() - since

    def at_embedding(self, hidden: torch.Tensor) -> None:
        """The first block is about to run on `hidden` [rows, hidden]: boundary 0."""
        if self._gather is None:
            return
        try:
            self._gather.put(self.place.local.index(0), State(hidden))
        except Exception as error:
            self._fail_pass(0, error)

    def after(self, output: Any) -> None:
        """The model has returned: send the rows on their way."""
        gather, batch = self._gather, self._batch
        self._batch, self._gather, self._reads = None, None, False
        if gather is None:
            return
        since = time.perf_counter()
        try:
            if self._settings.final == "post" and self.place.depth in self.place.local:
                normed = output[0] if isinstance(output, tuple) else output
                gather.put(self.place.local.index(self.place.depth), State(normed))
            gather.check_whole()
            self._take(gather, batch.input_ids)
        except Exception as error:
            logger.exception("Roost's capture failed in a forward pass")
            self._give_up(gather.segments, f"Capture failed: {type(error).__name__}: {error}.")
        self.totals.seconds += time.perf_counter() - since

    def expire(self) -> None:
        """Give up records whose rows stopped coming; called now and then, by another thread."""
        now = time.monotonic()
        for record in list(self._records.values()):
            if not record.complete and now - record.touched_at > STALE_SECONDS:
                wanted = record.request.rows
                record.fail(f"{record.admitted} of {wanted} rows came, and no more for {STALE_SECONDS:.0f} s.")
                record.end_if_failed()

    def _fail_pass(self, boundary: int, error: Exception) -> None:
        if not isinstance(error, RecordError):
            logger.error("Roost's capture could not read boundary %s", boundary, exc_info=error)
        if self._gather is not None:
            self._gather.fail(str(error) if isinstance(error, RecordError) else f"Boundary {boundary}: {error}.")

    def _take(self, gather: Gather, tokens: torch.Tensor) -> None:
        if gather.cause or gather.buffer is None:
            self._give_up(gather.segments, gather.cause)
            return
        self._sender.begin(gather, tokens)
        for segment in gather.segments:
            record = self._admit(segment, gather.buffer)
            if record is not None:
                self._sender.send(gather.buffer, record, segment)
        self._sender.flush()

    def _admit(self, segment: Segment, buffer: torch.Tensor) -> Record | None:
        """The segment's record, with room for it in the dump directory; None where it is over already or refused."""
        rid = str(segment.request)
        if rid in self._over:
            return None
        record = self._records.get(rid)
        begun = record is not None
        if record is None:
            record = self._begin(segment.request, buffer)
        try:
            record.admit(segment.first, segment.rows)
            if not begun:
                # What was copied so far must not wait behind this record: its being written is what makes room.
                self._sender.flush()
                self.space.reserve(record.path.name, record.layout.size, self._unfinished)
        except RecordError as error:
            record.fail(str(error))
            record.end_if_failed()
            return None
        return record

    def _begin(self, request: RequestId, buffer: torch.Tensor) -> Record:
        dtype = _DTYPES.get(buffer.dtype)
        if dtype is None:
            raise TypeError(f"states of dtype {buffer.dtype} have no place in a shard")
        layout = Layout(request.rows, buffer.shape[1], buffer.shape[2], dtype)
        path = self._settings.dump_dir / f"{request}{self.place.suffix}.safetensors"
        record = Record(request, path, layout, self._about, self._ended)
        self._records[str(request)] = record
        return record

    def _unfinished(self) -> Unfinished:
        live = list(self._records.values())
        waiting = {record.path.name for record in live if not record.complete and not record.cause}
        return Unfinished({record.path.name for record in live}, waiting)

    def _give_up(self, found: list[Segment] | Any, cause: str) -> None:
        for segment in found:
            rid = str(segment.request)
            record = self._records.get(rid)
            if record is not None:
                record.fail(cause)
                record.end_if_failed()
            elif rid not in self._over:
                write_cause(self._settings.dump_dir, segment.request, cause)
                self._remember(rid)
                with self.totals.lock:
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
        """A finished request may come again (SGLang recomputes one that it had to retract): its dump stays as it is."""
        self._over[rid] = None
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
