"""One attempt at one record: prefill, dump, checks, shard, ledger row, and removal of the dump.

Runs on the host inside the extractor's event loop; heavy work runs in the collector's threads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.extract import room
from remote.extract.dump import Expected
from remote.extract.join import join
from remote.extract.parity import Parity
from remote.extract.prefill import prefill
from remote.extract.store import Stored, store
from remote.extract.watch import Found, Watch
from remote.parity.bands import NormBand
from remote.shared.errors import RecordError
from remote.shared.paths import RunPaths
from remote.shared.shard.request_id import RequestId
from remote.storage.compress import pack_shard
from remote.work.assignment import Work
from remote.work.backlog import Task
from remote.work.client import Answer
from remote.work.commit import Committer
from remote.work.disk import DiskWriter
from remote.work.endpoint import Endpoint
from remote.work.failures import AttemptError, ServerGoneError
from remote.work.ledger import Row

LIFE_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Harvest:
    """The objects that all attempts of a session share."""

    work: Work
    sample: frozenset[int]
    """Indices of the records that are compared with the server's own logprobs."""
    paths: RunPaths
    nonce: str
    watch: Watch
    committer: Committer
    disk: DiskWriter
    parity: Parity
    band: NormBand

    def rid(self, task: Task) -> str:
        """Return the request id of an attempt."""
        index, rows = int(self.work.index[task.position]), len(self.work.tokens(task.position))
        return str(RequestId(self.nonce, index, task.attempt, rows))

    async def attempt(self, task: Task, endpoint: Endpoint) -> Row:
        """Run one attempt up to its committed row. Its tokens return to `endpoint` after the prefill.

        Raises ServerGoneError, AttemptError, CaptureError, NoRoomError or RecordError for a failed attempt, HostError
        for a fault of the host.
        """
        index, tokens = int(self.work.index[task.position]), self.work.tokens(task.position)
        rid, sampled = self.rid(task), index in self.sample
        dump = self.watch.expect(endpoint.dump_dir, rid)
        sent = asyncio.get_running_loop().time()
        try:
            answer = await self._prefill(rid, task, endpoint, logprobs=sampled)
            found = await self._await_dump(dump, endpoint, sent)
        finally:
            dump.cancel()
        identity, state = self.work.assignment.identity, endpoint.state
        expected = Expected(rid, index, tokens, identity, state.sglang, endpoint.capture.version)
        shard, size = self.paths.shard(index), expected.layout.size
        stored = await self.disk.write(index, size, _store_parts, found, shard, expected)
        parity = await self._compare(stored, tokens, answer, endpoint) if sampled else {}
        done_with = {*found.parts, found.whole}
        if self.work.assignment.store == "compressed":
            await self.disk.write(index, size, pack_shard, shard, stored.xxh3)
            done_with.add(shard)
        row = Row(
            index=index,
            state="done",
            rows=len(tokens),
            epoch=self.work.assignment.epoch,
            size_bytes=stored.size_bytes,
            xxh3=stored.xxh3,
            stored=self.work.assignment.store,
            mean_norm=stored.mean_norm,
            max_norm=stored.max_norm,
            parity=parity,
            flag=" ".join(self.band.observe(stored.mean_norm, stored.max_norm)),
            attempts=task.attempt,
        )
        await self.committer.commit(row, done_with)
        return row

    async def _prefill(self, rid: str, task: Task, endpoint: Endpoint, *, logprobs: bool) -> Answer:
        assert endpoint.client is not None
        tokens = self.work.tokens(task.position)
        try:
            return await prefill(endpoint.client, rid, tokens, logprobs=logprobs)
        finally:
            endpoint.tokens.give(len(tokens))

    async def _await_dump(self, dump: asyncio.Future[Found], endpoint: Endpoint, sent: float) -> Found:
        """Wait for the dump, at most for a request's time: capture's writer threads may finish it after the answer."""
        life, seconds = endpoint.life, self.work.assignment.request_timeout_seconds
        answered = asyncio.get_running_loop().time()
        while True:
            done, _ = await asyncio.wait({dump}, timeout=min(LIFE_POLL_SECONDS, seconds))
            if done:
                return dump.result()
            if not endpoint.ready or endpoint.life != life:
                raise ServerGoneError("The server ended between its answer and the dump.")
            waited = asyncio.get_running_loop().time() - answered
            if waited > room.FULL_GRACE_SECONDS and self.watch.was_full(endpoint.dump_dir, sent):
                raise room.NoRoomError("The RAM disk was full, and no dump came.")
            if waited > seconds:
                raise AttemptError(f"The server answered, but no dump came within {seconds:g} s.")

    async def _compare(
        self, stored: Stored, tokens: NDArray[np.int32], answer: Answer, endpoint: Endpoint
    ) -> dict[str, Any]:
        """Return the parity of a sampled record. A shard that fails the comparison is removed."""
        try:
            return await self.parity.check(stored.path, tokens, answer.meta, Path(endpoint.state.model).expanduser())
        except RecordError:
            stored.path.unlink(missing_ok=True)
            raise


def _store_parts(found: Found, shard: Path, expected: Expected) -> Stored:
    dump = found.whole
    try:
        if len(found.parts) > 1 and not dump.exists():
            join(found.parts, dump)
        return store(dump, shard, expected)
    except FileNotFoundError as error:
        if all(part.exists() for part in found.parts):
            raise
        raise ServerGoneError("The dump was removed before it was collected: its server was stopped.") from error
