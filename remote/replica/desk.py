"""Moves chunks between a run's queue and this node's own run folder: chunks arrive as lots and leave as results.

Runs on the node. The replica's main thread claims a few chunks ahead, a second thread sends beats, and a third
publishes finished chunks. The session that extracts is the only writer of the node's ledger, which is only read here.
"""

from __future__ import annotations

import base64
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from remote.context import Context
from remote.shared import ranges as sets
from remote.shared.files import DIRECTORY_MODE, write_whole
from remote.shared.leases.chunks import Chunks, cut
from remote.shared.leases.claims import Claim
from remote.shared.leases.queue import Queue, patience_seconds
from remote.shared.messages.extract import Delivered, FreedRequest
from remote.shared.messages.lease import Lease, TakeRequest
from remote.shared.messages.replica import ChunkRows, ReplicaResult, ReplicaSpec
from remote.shared.paths import ASSIGNMENT_FILE, COMPRESSED_SUFFIX, ROWS_FILE, RunPaths
from remote.shared.supervised.threads import Thread
from remote.work.assignment import Work, placed, share_of, write_records
from remote.work.ledger import Ledger, Row
from remote.work.moving import take
from remote.work.verbs import freed

BEAT_SHARE = 6
"""The number of beats that a holder sends within a lease."""
PUBLISH_SECONDS = 1.0
DEAD_SECONDS = 60.0
"""If a server that was ready is gone for this long, only the engine's next attempt starts it again."""


class Desk:
    """A context manager, which at its end releases every chunk that is not published."""

    def __init__(self, shared: RunPaths, spec: ReplicaSpec, name: str, scratch: Context) -> None:
        self._shared, self._spec, self._scratch = shared, spec, scratch
        self._own = scratch.workdir.run(shared.root.name)
        self._share: Work = share_of(shared, spec)
        self._chunks: Chunks = cut(self._share.lengths().tolist(), spec.chunk_tokens)
        self._queue = Queue(shared.queue, len(self._chunks), name, spec.lease_seconds)
        self._held: dict[int, Claim] = {}
        self._since: dict[int, float] = {}
        self._seconds: list[float] = []
        """The seconds from the claim to the result, for each chunk that this node finished."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._result = ReplicaResult()
        self._is_full = False
        """Whether the shared folder had no room at the last try."""
        self.draining = False

    def __enter__(self) -> Desk:
        self._adopt()
        self._threads = [Thread(self._beat, "the beat"), Thread(self._publish, "the publisher")]
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._queue.leave()

    def drain(self) -> None:
        """Claim no more chunks."""
        self.draining = True

    def has_open(self) -> bool:
        """Claim as many chunks as may be held ahead, then return whether this node has unfinished chunks."""
        while len(self._held) < self._spec.ahead and (claim := self._claimed(self._queue.take)) is not None:
            self._bring(claim)
        if not self._held and (slow := self._claimed(self._take_slow)) is not None:
            self._bring(slow)
        for thread in self._threads:
            if thread.error is not None:
                raise thread.error
        return any(not self._finished(chunk) for chunk in list(self._held))

    def _claimed(self, take: Callable[[], Claim | None]) -> Claim | None:
        """Return the claim that `take` makes; None while draining, or if the shared folder is full."""
        try:
            return None if self.draining else take()
        except OSError as error:
            self._refuse_unless_full(error)
            return None

    def _refuse_unless_full(self, error: OSError) -> None:
        """Report once that the shared folder is full; raise `error` if it has another cause."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise error
        if not self._is_full:
            self._is_full = True
            self._scratch.report.progress("the shared folder is full: finished chunks wait on this node for room")

    def _take_slow(self) -> Claim | None:
        return self._queue.take_slow(patience_seconds(self._seconds, self._spec.lease_seconds))

    def is_over(self) -> bool:
        """Return whether the run is over: every chunk is published, by this node or another."""
        return not self._held and self._queue.is_over()

    def publish_all(self) -> None:
        """Publish every finished chunk now."""
        for chunk in list(self._held):
            self._publish_one(chunk)

    def result(self) -> ReplicaResult:
        """Return the counts of this replica, and whether the run is over."""
        return self._result.model_copy(update={"over": self._queue.is_over()})

    def _adopt(self) -> None:
        """Give this node a share without records, unless it has one; chunks are added to the share as lots.

        A share of an earlier round is removed: records that are made again would count as finished.
        """
        whole, mark = self._share.assignment, self._own.round_here
        if self._own.root.exists() and (mark.read_text() if mark.exists() else "0") != str(self._spec.round):
            shutil.rmtree(self._own.root)
        target = self._own.assignment(whole.epoch)
        if target.exists():
            return
        none: dict[str, object] = {
            "host": self._queue.holder,
            "ranges": [],
            "records": 0,
            "tokens": 0,
            "plan": "",
            "then_stop": False,
        }
        if not any(server.restart for server in self._spec.servers):
            none["server_wait_seconds"] = DEAD_SECONDS
        with placed(target) as aside:
            aside.mkdir(mode=DIRECTORY_MODE)
            write_records(aside, np.zeros(0, np.int64), [], np.zeros(0, np.int32))
            write_whole(aside / ASSIGNMENT_FILE, whole.model_copy(update=none).model_dump_json().encode())
        write_whole(mark, str(self._spec.round).encode())

    def _bring(self, claim: Claim) -> None:
        """Add the chunk's records to this node's own run, unless an earlier attempt on this node left them there."""
        places = self._chunks.places(claim.chunk)
        tokens = [self._share.tokens(place) for place in places]
        lease = Lease(
            id=f"{claim.chunk:016x}",
            giver="queue",
            holder=claim.holder,
            ranges=sets.from_indices(self._share.index[places.start : places.stop].tolist()),
            lengths=[len(ids) for ids in tokens],
            token_ids=base64.b64encode(np.concatenate(tokens).astype("<i4").tobytes()).decode(),
        )
        whole = self._share.assignment
        take(TakeRequest(identity=whole.identity, epoch=whole.epoch, leases=[lease]), self._scratch)
        with self._lock:
            self._held[claim.chunk] = claim
            self._since[claim.chunk] = time.monotonic()

    def _beat(self) -> None:
        while not self._over.wait(self._spec.lease_seconds / BEAT_SHARE):
            self._queue.beat()

    def _publish(self) -> None:
        while not self._over.wait(PUBLISH_SECONDS):
            for chunk in list(self._held):
                self._publish_one(chunk)

    def _indices(self, chunk: int) -> list[int]:
        places = self._chunks.places(chunk)
        found: list[int] = self._share.index[places.start : places.stop].tolist()
        return found

    def _rows(self, chunk: int) -> list[Row]:
        if not self._own.ledger.exists():
            return []
        with Ledger(self._own.ledger, to_read=True) as ledger:
            return ledger.rows(self._indices(chunk))

    def _finished(self, chunk: int) -> bool:
        return len(self._rows(chunk)) == len(self._chunks.places(chunk))

    def _publish_one(self, chunk: int) -> None:
        """Publish a chunk if all of its records are finished, and free its shards on this node.

        The shards are also freed if another node published the chunk first.
        """
        with self._lock:
            claim, rows = self._held.get(chunk), self._rows(chunk)
            if claim is None or len(rows) < len(self._chunks.places(chunk)):
                return
            done = [row for row in rows if row.state == "done"]
            try:
                is_published = not self._queue.results.has(chunk) and self._put(claim, rows, done)
            except OSError as error:
                self._refuse_unless_full(error)
                return
            self._is_full = False
            self._result.published += is_published
            self._result.refused += not is_published
            identity = self._share.assignment.identity
            records = [Delivered(index=row.index, xxh3=row.xxh3) for row in done]
            freed(FreedRequest(identity=identity, records=records), self._scratch)
            del self._held[chunk]
            self._seconds.append(time.monotonic() - self._since.pop(chunk))

    def _put(self, claim: Claim, rows: list[Row], done: list[Row]) -> bool:
        """Copy a chunk's shards to the shared folder and publish them; return False if another node was first."""
        results, aside = self._queue.results, None
        try:
            aside = results.aside(claim.chunk)
            for row in done:
                shard = self._own.shard(row.index)
                name = shard.name + (COMPRESSED_SUFFIX if row.stored == "compressed" else "")
                _copy(shard.with_name(name), aside / name)
            told = ChunkRows(holder=claim.holder, token=claim.token, rows=[asdict(row) for row in rows])
            write_whole(aside / ROWS_FILE, told.model_dump_json().encode())
            if results.publish(claim.chunk, aside):
                if claim.token > 1:
                    results.sweep(claim.chunk)
                return True
        except OSError:
            if not results.has(claim.chunk):  # otherwise the chunk's publisher has removed this folder
                raise
        finally:
            if aside is not None:
                shutil.rmtree(aside, ignore_errors=True)
        return False


def _copy(source: Path, target: Path) -> None:
    """Copy a shard durably."""
    shutil.copyfile(source, target)
    target.chmod(0o600)
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
