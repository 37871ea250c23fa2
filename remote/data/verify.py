"""The verb `verify`: checks every shard of a destination, or of a run on this host, against ledger and dataset.

Read-only. Streams each fault as an item when it is found. The result counts the faults and names the records to do
again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from remote.context import Context
from remote.data import holdings
from remote.data.holdings import Holdings
from remote.data.shardcheck import Checked, check_shard
from remote.data.workers import cores
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.verify import Fault, FaultKind, ParityResult, VerifyRequest, VerifyResult
from remote.shared.ranges import from_indices
from remote.shared.supervised.pools import Pool, in_order
from remote.work.known import known

if TYPE_CHECKING:
    from remote.data.reference import Reference

_AHEAD = 4
"""Shards that each thread may be ahead of the reader."""
_PROGRESS_SECONDS = 0.5
PARITY_LIMITS = {"F32": 1e-4, "BF16": 0.06, "F16": 0.02}
"""Largest relative error of a slot. In 16 bits, two correct kernels differ by some units of the last place, which add
up over the blocks. A wrong layer, norm or row differs by a third and more.
"""


def verify(request: VerifyRequest, context: Context) -> VerifyResult:
    """Check all shards. Faults are part of the result; an error is raised only if the check is not possible."""
    begun = time.monotonic()
    place = _place(request, context)
    if request.model and place.identity.answers is not None:
        raise UsageError("Answers have no hidden states to compare.", remedy="Verify them without --model.")
    found: Counter[FaultKind] = Counter()
    again: set[int] = set()
    parity: list[ParityResult] = []
    unsummed: list[int] = []
    for fault in _all_faults(place, request, context, parity, unsummed):
        context.report.item(fault)
        found[fault.kind] += 1
        if fault.index is not None:
            again.add(fault.index)
    return VerifyResult(
        identity=place.identity,
        has_dataset=place.has_dataset,
        records=len(place.rows),
        tokens=sum(row.rows for row in place.rows),
        size_bytes=sum(row.size_bytes for row in place.rows),
        expected=len(place.expected),
        quarantined=len(place.quarantined),
        delivered=len(place.delivered),
        faults=sum(found.values()),
        parity=parity,
        by_kind=dict(found),
        without_sums=len(unsummed),
        requeue=from_indices(sorted(again)),
        holes=from_indices(place.holes().tolist()),
        complete=not found and len(place.rows) + len(place.delivered) == len(place.expected),
        wall_seconds=time.monotonic() - begun,
    )


def _place(request: VerifyRequest, context: Context) -> Holdings:
    if bool(request.folder) == (request.run is not None):
        raise UsageError("Name either a folder or a run to verify, not both.")
    if request.run is not None:
        return holdings.of_run(known(context.workdir, request.run))
    return holdings.of_destination(Path(request.folder).expanduser())


def _all_faults(
    place: Holdings, request: VerifyRequest, context: Context, parity: list[ParityResult], unsummed: list[int]
) -> Iterator[Fault]:
    """Yield all faults, and fill `parity` and `unsummed` (records without row sums)."""
    for path in place.strangers():
        yield Fault(kind="stranger", file=path.name, message="The ledger has no row for this file.")
    yield from _shard_faults(place, request, context, unsummed)
    if request.model:
        context.report.progress("comparing a sample with transformers")
        yield from _parity_faults(place, request, parity)


def _parity_faults(place: Holdings, request: VerifyRequest, parity: list[ParityResult]) -> Iterator[Fault]:
    """Compare each slot of a spread sample of records with transformers. Unreadable shards were reported before."""
    from remote.data.reference import Reference

    reference = Reference(Path(request.model).expanduser(), place.identity)
    limit = PARITY_LIMITS[place.identity.dtype]
    for row in place.rows[:: max(1, len(place.rows) // request.parity_records)][: request.parity_records]:
        errors = _relative_errors(reference, place, row)
        if errors is None:
            continue
        parity.append(ParityResult(index=row.index, errors=errors))
        wrong = [slot for slot, error in enumerate(errors) if not error <= limit]
        if wrong:
            error = errors[wrong[0]]
            message = f"Slot {wrong[0]} differs by {error:.1e} from what transformers computes; the limit is {limit:g}."
            yield Fault(kind="parity", index=row.index, file=place.path(row).name, message=message)


def _relative_errors(reference: Reference, place: Holdings, row: ShardRow) -> list[float] | None:
    from remote.data.export.sample import read_tensors
    from remote.data.reference import relative_errors

    try:
        _, found = read_tensors(place.path(row))
    except HostError:
        return None
    wanted = reference.states(place.token_ids(row.index))
    return relative_errors(found, wanted) if found.shape == wanted.shape else None


def _shard_faults(place: Holdings, request: VerifyRequest, context: Context, unsummed: list[int]) -> Iterator[Fault]:
    total, done, said = sum(row.size_bytes for row in place.rows), 0, 0.0

    def check(row: ShardRow) -> Checked:
        ids = place.token_ids(row.index)
        return check_shard(place.path(row), row, place.identity, ids, every_byte=request.digests)

    for row, checked in _in_threads(check, place.rows, request.threads or cores()):
        yield from checked.faults
        if checked.without_sums:
            unsummed.append(row.index)
        done += row.size_bytes
        if time.monotonic() - said > _PROGRESS_SECONDS:
            said = time.monotonic()
            context.report.progress("verifying", done, total, "B")


def _in_threads(
    check: Callable[[ShardRow], Checked], rows: list[ShardRow], threads: int
) -> Iterator[tuple[ShardRow, Checked]]:
    """Yield the checked rows in order. The `threads` threads are a limited number of rows ahead of the reader."""
    with Pool(threads, "verify") as pool:
        yield from zip(rows, in_order(pool, check, rows, ahead=threads * _AHEAD), strict=True)
