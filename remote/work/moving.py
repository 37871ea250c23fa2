"""The verbs `lease`, `take` and `leases`: move open records from one host to another during a run.

Runs on the host, called by an attached laptop, whether or not the run's process lives. The giving host decides: it
claims a chunk for the other host by a file that only one claimant can create, so it never begins the chunk itself. The
claim is durable before its lease is sent, and the lease can be sent again, so a laptop that dies in between loses
nothing.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator

import numpy as np

from remote.context import Context
from remote.shared import ranges as sets
from remote.shared.errors import UsageError
from remote.shared.files import DIRECTORY_MODE, write_whole
from remote.shared.leases.claims import Claim
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.extract import Assignment
from remote.shared.messages.lease import (
    Lease,
    LeaseRequest,
    LeaseResult,
    LeasesRequest,
    LeasesResult,
    Moved,
    TakeRequest,
    TakeResult,
)
from remote.shared.messages.run import RunIdentity
from remote.shared.paths import RunPaths
from remote.work import epochs
from remote.work.assignment import Work, placed, write_records
from remote.work.holding import Holding
from remote.work.known import known
from remote.work.ledger import Ledger
from remote.work.lots import LOT_FILE, Lot, given, taken


def lease(request: LeaseRequest, context: Context) -> LeaseResult:
    """The verb `lease`: give open records to another host, and stream the leases."""
    if request.identity.answers is not None:
        raise UsageError(
            "Prompts do not move between hosts, because the rest of their conversations is only in the "
            "host's own share."
        )
    paths = _at_epoch(context, request.identity, request.epoch)
    holding, told = Holding(paths), LeaseResult()
    for one in _again(request, paths, holding) if request.again else _new(request, paths, holding):
        context.report.item(one)
        told.leases, told.tokens = told.leases + 1, told.tokens + one.tokens
    return told


def take(request: TakeRequest, context: Context) -> TakeResult:
    """The verb `take`: add the leases' records to this host's work. Its present or next process does them."""
    paths = _at_epoch(context, request.identity, request.epoch)
    had = {one.id for one in taken(paths, request.epoch)}
    new = [one for one in request.leases if one.id not in had]
    if not new:
        return TakeResult()
    moved = [Moved(id=one.id, giver=one.giver, holder=one.holder, ranges=one.ranges) for one in new]
    lot = Lot(name=new[0].id, leases=moved, tokens=sum(one.tokens for one in new))
    indices = np.array([index for one in new for index in sets.indices(one.ranges)], np.int64)
    lengths = [length for one in new for length in one.lengths]
    token_ids = np.concatenate([np.frombuffer(base64.b64decode(one.token_ids), "<i4") for one in new])
    if len(indices) != len(lengths) or len(token_ids) != sum(lengths):
        raise UsageError(f"The leases name {len(indices)} records, but have the tokens of {len(lengths)}.")
    with placed(paths.lots(request.epoch) / lot.name) as aside:
        aside.mkdir(mode=DIRECTORY_MODE)
        write_records(aside, indices, lengths, token_ids.astype(np.int32))
        write_whole(aside / LOT_FILE, lot.model_dump_json().encode())
    return TakeResult(records=len(indices))


def leases(request: LeasesRequest, context: Context) -> LeasesResult:
    """The verb `leases`: return the leases that this host gave and was given."""
    paths = known(context.workdir, request.identity)
    share = epochs.read_description(epochs.newest(paths))
    return LeasesResult(epoch=share.epoch, given=given(paths, share), taken=taken(paths, share.epoch))


def _at_epoch(context: Context, identity: RunIdentity, epoch: int) -> RunPaths:
    paths = known(context.workdir, identity)
    here = epochs.newest_epoch(paths)
    if here != epoch:
        raise UsageError(
            f"The run {identity.name!r} is at epoch {here} on this host, but the records to move are of epoch {epoch}.",
            remedy="The run was planned again meanwhile: type the command again.",
        )
    return paths


def _new(request: LeaseRequest, paths: RunPaths, holding: Holding) -> Iterator[Lease]:
    """Claim chunks for the other host that this host has not begun. Finished records of these chunks stay here."""
    with Ledger(paths.ledger) as ledger:
        finished = ledger.states()
    wanted = request.tokens
    for pool, chunk in holding.untouched():
        if wanted <= 0:
            return
        positions = holding.unfinished(pool, chunk, finished)
        lengths = [len(holding.work.tokens(position)) for position in positions]
        if not positions or (request.longest and max(lengths) > request.longest):
            continue
        ranges = sets.from_indices(int(holding.work.index[position]) for position in positions)
        claim = Claim(
            chunk=chunk,
            token=1,
            holder=request.holder,
            lease=secrets.token_hex(8),
            ranges=ranges,
            tokens=sum(lengths),
        )
        if pool.claims.claim(claim):
            wanted -= claim.tokens
            yield _lease(holding.work, holding.assignment(), claim.lease, request.holder, ranges)


def _again(request: LeaseRequest, paths: RunPaths, holding: Holding) -> Iterator[Lease]:
    share = holding.assignment()
    for one in given(paths, share):
        if one.id in request.again and one.holder == request.holder:
            yield _lease(holding.work, share, one.id, one.holder, one.ranges)


def _lease(work: Work, share: Assignment, name: str, holder: str, ranges: Ranges) -> Lease:
    places = {int(index): position for position, index in enumerate(work.index.tolist())}
    tokens = [work.tokens(places[index]) for index in sets.indices(ranges)]
    packed = np.concatenate(tokens).astype("<i4").tobytes()
    return Lease(
        id=name,
        giver=share.host,
        holder=holder,
        ranges=ranges,
        lengths=[len(ids) for ids in tokens],
        token_ids=base64.b64encode(packed).decode(),
    )
