"""The verbs that read a run's ledger, and the few verbs that change it from outside.

Runs on the host, called by the laptop at any time, whether or not an extractor runs.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from remote.context import Context
from remote.servers.housekeeping.ramdisk import dump_dirs, held_bytes, wait_seconds
from remote.shared.errors import HostError, UsageError
from remote.shared.files import ASIDE, write_whole
from remote.shared.messages.extract import (
    Assignment,
    Control,
    ControlRequest,
    Counts,
    ExtractorState,
    FenceRequest,
    FollowRequest,
    FreedRequest,
    IndicesRequest,
    IndicesResult,
    ReopenRequest,
    ReopenResult,
    RunRequest,
    RunStatus,
    ShardBatch,
    ShardRow,
    ShardsRequest,
    ShardsResult,
    Spare,
)
from remote.shared.paths import COMPRESSED_SUFFIX, RunPaths
from remote.work import epochs
from remote.work.gathered import is_shared_out, living, status_by, take_in
from remote.work.known import known, named, names, refuse_older_plan
from remote.work.ledger import Ledger
from remote.work.lock import is_locked
from remote.work.lots import effective
from remote.work.progress import asked, read_state, settled, wish, word
from remote.work.session import assigned
from remote.work.spare import spare

BATCH = 500
"""Rows of one item, about 60 kB of JSON."""


def status(request: RunRequest, context: Context) -> RunStatus:
    """The verb `status`: return the ledger's counts, the extractor's last state, and whether the extractor lives."""
    run = request.run or newest_run(context)
    if run is None:
        return RunStatus(run="", alive=False, word="none", state=ExtractorState(run="", epoch=0, status="stopped"))
    return status_of(named(context.workdir, run), context)


def status_of(paths: RunPaths, context: Context) -> RunStatus:
    """Return the present status of one run."""
    take_in(paths)
    alive = is_locked(paths)
    facts = _facts(paths)
    epoch = facts.given.epoch if facts.given else 0
    state = settled(read_state(paths) or ExtractorState(run=paths.root.name, epoch=epoch, status="stopped"), alive)
    if is_shared_out(paths):
        replicas = living(paths)
        alive = bool(replicas)
        state = state.model_copy(update={"status": status_by(facts.counts, replicas), "cause": ""})
    directories = dump_dirs(context.workdir)
    said, free = word(state, alive, wish(paths)), _free_bytes(paths)
    return RunStatus(
        run=paths.root.name,
        alive=alive,
        word=said,
        state=state.model_copy(update={"counts": facts.counts}),
        task=facts.given.task if facts.given else "extract",
        host=facts.given.host if facts.given else "",
        records_flagged=facts.flagged,
        parity_checked=facts.parity_checked,
        causes=facts.causes,
        free_bytes=free,
        spare=spare(context.workdir, facts.given, facts.counts, free, said) if facts.given else Spare(),
        in_flight_bytes=held_bytes(directories),
        prefill_wait_seconds=wait_seconds(directories),
    )


def follow(request: FollowRequest, context: Context) -> RunStatus:
    """The verb `follow`: stream the run's status until its extractor ends."""
    while True:
        told = status(RunRequest(run=request.run), context)
        if not told.alive:
            return told
        context.report.item(told)
        time.sleep(request.every_seconds)


def fence(request: FenceRequest, context: Context) -> RunStatus:
    """The verb `fence`: revoke this host's share. It begins no further record; finished records can be pulled."""
    from remote.work.assignment import fence as take_away

    paths = known(context.workdir, request.identity)
    take_away(paths, request.epoch)
    return status(RunRequest(run=request.identity.name), context)


def shards(request: ShardsRequest, context: Context) -> ShardsResult:
    """The verb `shards`: stream finished records as `ShardBatch` items, in order of finishing."""
    paths = known(context.workdir, request.identity)
    take_in(paths)
    cursor, sent = request.after, 0
    for batch in _batches(paths, request):
        context.report.item(batch)
        cursor, sent = batch.cursor, sent + len(batch.rows)
    told = status(RunRequest(run=request.identity.name), context)
    return ShardsResult(rows=sent, cursor=cursor, counts=told.state.counts, status=told.state.status)


def requeue(request: IndicesRequest, context: Context) -> IndicesResult:
    """The verb `requeue`: open these records again, and delete their shards.

    A shard is deleted before its row. If the verb ends in between, the next session finds a row without a shard and
    opens the record. A cluster's replicas take the record up once the run is submitted again.
    """
    paths = known(context.workdir, request.identity)
    refuse_older_plan(paths, request.epoch)
    take_in(paths)
    freed = _delete_shards(paths, request.indices)
    with Ledger(paths.ledger) as ledger:
        return IndicesResult(records=ledger.forget(request.indices), freed_bytes=freed)


def reopen(request: ReopenRequest, context: Context) -> ReopenResult:
    """The verb `reopen`: open quarantined records again. The ledger keeps the causes."""
    paths = known(context.workdir, request.identity)
    take_in(paths)
    if not paths.ledger.exists():
        return ReopenResult()
    with Ledger(paths.ledger, to_read=request.dry_run) as ledger:
        quarantined = ledger.quarantined()
        chosen = quarantined.keys() & set(request.indices) if request.indices else quarantined.keys()
        if not request.dry_run:
            ledger.reopen(chosen)
    return ReopenResult(records=len(chosen), causes=Counter(quarantined[index] for index in chosen))


def freed(request: FreedRequest, context: Context) -> IndicesResult:
    """The verb `freed`: mark these records as delivered, and delete their shards.

    A record is marked before its shard is deleted. If the verb ends in between, the next session deletes the shard,
    because it has no `done` row. The ledger is held only while shards are renamed, because deleting large shards takes
    seconds.
    """
    paths = known(context.workdir, request.identity)
    _refuse_links(paths)
    records = [(record.index, record.xxh3) for record in request.records]
    with Ledger(paths.ledger) as ledger:
        marked = ledger.free(records)
        with ledger.held_freed(records) as delivered:
            aside = [gone for index in delivered for gone in _set_aside(paths, index)]
    return IndicesResult(records=marked, freed_bytes=sum(map(_delete, aside)))


def control(request: ControlRequest, context: Context) -> RunStatus:
    """The verb `control`: leave a request for the running extractor; return the run's present status."""
    paths = named(context.workdir, request.run)
    if not is_locked(paths):
        told = status_of(paths, context)
        if told.state.status == "complete" or request.action == "stop":
            return told  # no extractor could resume
        if request.action == "resume":
            paths.control.unlink(missing_ok=True)
        raise UsageError(
            f"No extractor of the run {request.run!r} is running on this host.",
            remedy=f"`inv {told.task}` starts or resumes it.",
        )
    before = asked(paths)
    wish = Control(action=request.action, at=time.time(), by=context.operator)
    write_whole(paths.control, wish.model_dump_json().encode())
    told = status(RunRequest(run=request.run), context)
    if before is not None and before.by != wish.by and before.action != wish.action:
        told.overruled = f"{before.by or 'somebody'} had asked to {before.action} it {wish.at - before.at:.0f} s before"
    return told


def newest_run(context: Context) -> str | None:
    """Return the run whose state or assignment changed last."""
    return max(names(context.workdir), key=lambda name: touched(context.workdir.run(name)), default=None)


def touched(paths: RunPaths) -> float:
    """Return when the run's state or assignments changed last, in Unix time."""
    return max((path.stat().st_mtime for path in (paths.state, paths.assignments) if path.exists()), default=0.0)


@dataclass
class _Facts:
    """The facts of a run from its ledger and assignment."""

    given: Assignment | None = None
    """The assignment with the records that this host has to do now."""
    counts: Counts = field(default_factory=Counts)
    causes: dict[str, int] = field(default_factory=dict)
    flagged: int = 0
    parity_checked: int = 0


def _facts(paths: RunPaths) -> _Facts:
    """Return the facts, without creating a missing ledger."""
    given = None
    if epochs.newest_epoch(paths) is not None:
        given = effective(paths, epochs.read_description(epochs.newest(paths)))
    facts = _Facts()
    if paths.ledger.exists():
        with Ledger(paths.ledger, to_read=True) as ledger:
            facts.counts, facts.causes = ledger.counts(given.ranges if given else None), ledger.causes()
            facts.flagged, facts.parity_checked = ledger.flagged(), ledger.parity_checked()
    if given is not None:
        facts.given = given
        assigned(facts.counts, given)
    return facts


def _free_bytes(paths: RunPaths) -> int:
    found = os.statvfs(paths.shards if paths.shards.is_dir() else paths.root)
    return found.f_bavail * found.f_frsize


def _batches(paths: RunPaths, request: ShardsRequest) -> Iterator[ShardBatch]:
    if not paths.ledger.exists():
        return
    rows: list[ShardRow] = []
    with Ledger(paths.ledger, to_read=True) as ledger:
        for cursor, row in ledger.shards(request.after, request.limit, freed=request.freed):
            rows.append(row)
            if len(rows) == BATCH:
                yield ShardBatch(rows=rows, cursor=cursor)
                rows = []
        if rows:
            yield ShardBatch(rows=rows, cursor=cursor)


def _refuse_links(paths: RunPaths) -> None:
    """Raise HostError if the run's shards are behind a link: Roost deletes only files in its working directory."""
    for folder in (paths.root, paths.shards):
        if folder.is_symlink():
            raise HostError(
                f"{folder} is a link to {folder.resolve()}, and nothing is freed through a link.",
                remedy="Delete the shards there by hand, or mount that disk at this place instead of the link.",
            )


def _delete_shards(paths: RunPaths, indices: Iterable[int]) -> int:
    return sum(_delete(shard) for index in indices for shard in _forms(paths, index))


def _forms(paths: RunPaths, index: int) -> tuple[Path, Path]:
    """Return the possible paths of a record's shard: plain, and compressed."""
    plain = paths.shard(index)
    return plain, plain.with_name(plain.name + COMPRESSED_SUFFIX)


def _set_aside(paths: RunPaths, index: int) -> Iterator[Path]:
    """Rename the record's shards to names that the next session deletes; yield the new paths."""
    for shard in _forms(paths, index):
        aside = shard.with_name(f"{ASIDE}freed-{secrets.token_hex(4)}-{shard.name}")
        try:
            shard.rename(aside)
        except FileNotFoundError:
            continue
        yield aside


def _delete(path: Path) -> int:
    """Delete a file; return its size in bytes, 0 if it does not exist."""
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size
