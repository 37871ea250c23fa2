"""Verb `verify`: every shard of a destination, or of a run on this host, against ledger, dataset and sense.

Read-only. Streams faults as items while it finds them; the result counts them and says which records to do again.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from remote.context import Context
from remote.data import holdings
from remote.data.holdings import Holdings
from remote.data.shardcheck import check_shard
from remote.data.workers import cores
from remote.errors import UsageError
from remote.messages.dataset import Ranges
from remote.messages.extract import ShardRow
from remote.messages.verify import Fault, FaultKind, VerifyRequest, VerifyResult

_AHEAD = 4
"""Shards handed to each thread before the oldest one is awaited."""
_PROGRESS_SECONDS = 0.5


def verify(request: VerifyRequest, context: Context) -> VerifyResult:
    """Check everything; a fault is a row of the answer, an error only what makes checking impossible."""
    begun = time.monotonic()
    place = _place(request, context)
    found: Counter[FaultKind] = Counter()
    again: set[int] = set()
    for fault in _all_faults(place, request, context):
        context.report.item(fault)
        found[fault.kind] += 1
        if fault.index is not None:
            again.add(fault.index)
    return VerifyResult(
        records=len(place.rows),
        tokens=sum(row.rows for row in place.rows),
        size_bytes=sum(row.size_bytes for row in place.rows),
        expected=len(place.expected),
        quarantined=len(place.quarantined),
        delivered=len(place.delivered),
        faults=sum(found.values()),
        by_kind=dict(found),
        requeue=_ranges(sorted(again)),
        holes=_ranges(place.holes().tolist()),
        complete=not found and len(place.rows) + len(place.delivered) == len(place.expected),
        wall_seconds=time.monotonic() - begun,
    )


def _place(request: VerifyRequest, context: Context) -> Holdings:
    if bool(request.folder) == bool(request.run):
        raise UsageError("Say either a folder or a run to verify.")
    if request.run:
        return holdings.of_run(context.workdir.run(request.run))
    return holdings.of_destination(Path(request.folder).expanduser())


def _all_faults(place: Holdings, request: VerifyRequest, context: Context) -> Iterator[Fault]:
    for path in place.strangers():
        yield Fault(kind="stranger", file=path.name, message="No row of the ledger speaks of it.")
    yield from _shard_faults(place, request, context)


def _shard_faults(place: Holdings, request: VerifyRequest, context: Context) -> Iterator[Fault]:
    total, done, said = sum(row.size_bytes for row in place.rows), 0, 0.0

    def check(row: ShardRow) -> list[Fault]:
        ids = place.token_ids(row.index)
        return check_shard(place.path(row.index), row, place.identity, ids, every_byte=request.digests)

    for row, faults in _in_threads(check, place.rows, request.threads or cores()):
        yield from faults
        done += row.size_bytes
        if time.monotonic() - said > _PROGRESS_SECONDS:
            said = time.monotonic()
            context.report.progress("verifying", done, total, "B")


def _in_threads(
    check: Callable[[ShardRow], list[Fault]], rows: list[ShardRow], threads: int
) -> Iterator[tuple[ShardRow, list[Fault]]]:
    """Check rows on `threads` threads, in order, a bounded number ahead of the reader."""
    waiting: deque[tuple[ShardRow, Future[list[Fault]]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
        for row in rows:
            waiting.append((row, pool.submit(check, row)))
            if len(waiting) >= threads * _AHEAD:
                checked, future = waiting.popleft()
                yield checked, future.result()
        for checked, future in waiting:
            yield checked, future.result()


def _ranges(indices: list[int]) -> Ranges:
    ranges: Ranges = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return ranges
