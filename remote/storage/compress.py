"""Compresses a run's finished shards in place: 5.0 TB become 3.4. Runs on the host, even while an extractor runs.

The verb `compress` does this for all plain shards; `pack_shard` does it for one shard, for the collector of a run with
`store: compressed`. First the container is made durable and verified, then the ledger is changed, then the plain shard
is removed. If this is interrupted, both forms exist and the ledger tells which counts. The last two steps hold the
run's shards, so that a session of the extractor that starts meanwhile sees exactly one form. On a cluster, a node does
the first step for all shards (`pack`), and the login host does the other two (`adopt`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from remote.context import Context
from remote.shared.codec.container import SUFFIX, pack_file, read_index
from remote.shared.codec.piece import DamagedError
from remote.shared.errors import RecordError, UsageError
from remote.shared.messages.codec import CompressRequest, CompressResult
from remote.shared.messages.extract import ShardRow
from remote.shared.paths import RunPaths
from remote.shared.supervised.pools import as_finished
from remote.shared.supervised.processes import process_pool
from remote.work.known import known
from remote.work.ledger import Ledger
from remote.work.lock import shards_held

SAMPLE_SHARDS = 4
"""For Kimi-K2.5's records of mean length, half a gigabyte: about a second on one core."""
_FEWER = "Run again with fewer --processes; compressed shards stay compressed."


def compress(request: CompressRequest, context: Context) -> CompressResult:
    """Compress every plain shard of a run on several cores; a damaged shard stays plain and is reported."""
    paths = _of_states(request, context)
    with Ledger(paths.ledger) as ledger:
        rows = [row for _, row in ledger.shards() if row.stored == "plain"]
        if request.dry_run:
            sampled, ratio = _measured(paths, rows)
            plain_bytes = sum(row.size_bytes for row in rows)
            return CompressResult(compressed=0, plain=len(rows), plain_bytes=plain_bytes, sampled=sampled, ratio=ratio)
        result = CompressResult(compressed=0)
        for row, job in _in_pool(paths, rows, request, context):
            _settle(paths, ledger, row, job, result)
    return result


def pack(request: CompressRequest, context: Context) -> CompressResult:
    """Write the containers of a run's plain shards beside the shards, on a cluster's node; return what failed.

    Neither the ledger nor a plain shard is changed: `adopt` does that on the login host, which alone opens the run's
    ledger. The ledger here is a copy.
    """
    paths = _of_states(request, context)
    with Ledger(paths.ledger) as ledger:
        rows = [row for _, row in ledger.shards() if row.stored == "plain"]
    result = CompressResult(compressed=0)
    for row, job in _in_pool(paths, rows, request, context):
        try:
            job.result()
        except FileNotFoundError:
            continue  # the shard was delivered and freed meanwhile
        except (RecordError, OSError) as error:
            result.failed[row.index] = str(error)
    return result


def adopt(paths: RunPaths, packed: CompressResult) -> CompressResult:
    """Let every container that `pack` wrote take the place of its plain shard; return what became of all shards."""
    with Ledger(paths.ledger) as ledger:
        result = CompressResult(compressed=0)
        for _, row in list(ledger.shards()):
            if row.stored == "plain" and (size := _whole_container(paths.shard(row.index), row.xxh3)) is not None:
                _adopted(paths, ledger, row, size, result)
        states = ledger.states()
        for index, (state, _, _) in states.items():
            if state == "freed":  # while a node packed it
                _container(paths.shard(index)).unlink(missing_ok=True)
    failed = {index: why for index, why in packed.failed.items() if states.get(index, ("",))[0] == "done"}
    return result.model_copy(update={"failed": failed})


def _whole_container(shard: Path, xxh3: str) -> int | None:
    """Return the bytes of a shard's container; None if there is no container of a shard with this digest."""
    try:
        with _container(shard).open("rb") as stream:
            return os.fstat(stream.fileno()).st_size if read_index(stream).xxh3 == xxh3 else None
    except (FileNotFoundError, DamagedError):
        return None


def _of_states(request: CompressRequest, context: Context) -> RunPaths:
    """Return the folder of a run with finished hidden states; raises UsageError for any other run."""
    paths = known(context.workdir, request.identity)
    if not paths.ledger.exists():
        raise UsageError(f"This host has no finished records of the run {request.identity.name!r}.")
    if request.identity.answers is not None:
        raise UsageError("Answers are ids and text, which stay plain.", remedy="Only hidden states are compressed.")
    return paths


def _in_pool(
    paths: RunPaths, rows: list[ShardRow], request: CompressRequest, context: Context
) -> Iterator[tuple[ShardRow, Future[int]]]:
    """Pack the shards on several cores, and yield each row when the work on its shard has ended."""
    workers = max(1, min(request.processes or (os.cpu_count() or 2) // 2, len(rows)))
    with process_pool(workers, remedy=_FEWER) as pool:
        jobs = {pool.submit(pack_shard, paths.shard(row.index), row.xxh3): row for row in rows}
        for number, job in enumerate(as_finished(jobs), 1):
            yield jobs[job], job
            context.report.progress("compressing", number, len(rows), "shards")


def _measured(paths: RunPaths, rows: list[ShardRow]) -> tuple[int, float]:
    """Compress a sample of the run's shards to a temporary folder; returns its size, and packed over plain bytes.

    Shards that are freed meanwhile or are damaged are left out.
    """
    plain = packed = sampled = 0
    with tempfile.TemporaryDirectory(prefix="roost-compress-") as folder:
        target = Path(folder) / "sample"
        for row in rows[:: max(1, len(rows) // SAMPLE_SHARDS)][:SAMPLE_SHARDS]:
            with suppress(OSError, RecordError):
                pack_file(paths.shard(row.index), target, durable=False)
                plain, packed, sampled = plain + row.size_bytes, packed + target.stat().st_size, sampled + 1
                target.unlink()
    return sampled, packed / plain if plain else 0.0


def _settle(paths: RunPaths, ledger: Ledger, row: ShardRow, job: Future[int], result: CompressResult) -> None:
    """Change the ledger and remove the plain shard, unless the record was freed or re-queued meanwhile."""
    try:
        if not _adopted(paths, ledger, row, _packed(job.result), result):  # a new session removed the container
            shard = paths.shard(row.index)
            if not _adopted(paths, ledger, row, _packed(lambda: pack_shard(shard, row.xxh3)), result):
                raise OSError("the extractor was started meanwhile; compress again")
    except (RecordError, OSError) as error:
        if ledger.has(row.index, row.xxh3):
            result.failed[row.index] = str(error)


def _packed(pack: Callable[[], int]) -> int | None:
    """Return the container's bytes; None if a starting session deleted it as a file without a row."""
    try:
        return pack()
    except FileNotFoundError:
        return None


def _adopted(paths: RunPaths, ledger: Ledger, row: ShardRow, packed: int | None, result: CompressResult) -> bool:
    """Return whether the record is done: its container counts from now on, or the record is no longer here."""
    container = _container(paths.shard(row.index))
    with shards_held(paths):
        if not ledger.has(row.index, row.xxh3):
            now = ledger.states().get(row.index)
            if now is None or now[2] != "compressed":
                container.unlink(missing_ok=True)
            return True
        if packed is None or not container.exists():
            return False
        if ledger.mark_stored(row.index, row.xxh3, "compressed"):
            paths.shard(row.index).unlink(missing_ok=True)
            result.compressed += 1
            result.plain_bytes += row.size_bytes
            result.packed_bytes += packed
        return True


def _container(shard: Path) -> Path:
    return shard.with_name(shard.name + SUFFIX)


def pack_shard(shard: Path, xxh3: str) -> int:
    """Write a durable container beside a shard and return the container's bytes.

    Raises RecordError if the shard does not have this digest, OSError if the disk fails.
    """
    container = _container(shard)
    if pack_file(shard, container).xxh3 != xxh3:
        container.unlink()
        raise RecordError(f"{shard.name} does not have the digest in the ledger; it was left as it is.")
    return container.stat().st_size
