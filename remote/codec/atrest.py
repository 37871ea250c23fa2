"""A run's finished shards compressed where they lie: 5.0 TB become 3.4. Runs on the host, beside a running extractor.

The verb `compress` does it for all that is plain; `compress_shard` for one, for whoever finishes one. In this order:
the container is durable and verified, the ledger says so, the plain shard goes. Ended in between, both are there and
the ledger tells which counts.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from remote.codec.container import SUFFIX, pack_file
from remote.context import Context
from remote.errors import RecordError, UsageError
from remote.extract.ledger import Ledger
from remote.messages.codec import CompressRequest, CompressResult
from remote.messages.extract import ShardRow
from remote.paths import RunPaths


def compress(request: CompressRequest, context: Context) -> CompressResult:
    """Compress every plain shard of a run, on some cores; one that is damaged stays as it is and is reported."""
    paths = context.workdir.run(request.run)
    if not paths.ledger.exists():
        raise UsageError(f"There is no run {request.run!r} with finished records here.")
    with Ledger(paths.ledger) as ledger:
        rows = [row for _, row in ledger.shards() if row.stored == "plain"]
        result = CompressResult(compressed=0, plain_bytes=0, packed_bytes=0)
        workers = max(1, min(request.processes or (os.cpu_count() or 2) // 2, len(rows)))
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            jobs = {pool.submit(_pack, paths.shard(row.index), row.xxh3): row for row in rows}
            for number, job in enumerate(as_completed(jobs), 1):
                row = jobs[job]
                try:
                    packed = job.result()
                except (RecordError, OSError) as error:
                    result.failed[row.index] = str(error)
                else:
                    _settle(paths, ledger, row)
                    result.compressed += 1
                    result.plain_bytes += row.size_bytes
                    result.packed_bytes += packed
                context.report.progress("compressing", number, len(rows), "shards")
    return result


def compress_shard(paths: RunPaths, ledger: Ledger, row: ShardRow) -> int:
    """Compress one finished shard; returns the container's bytes. Raises RecordError where its digest is wrong."""
    packed = _pack(paths.shard(row.index), row.xxh3)
    _settle(paths, ledger, row)
    return packed


def _pack(shard: Path, xxh3: str) -> int:
    container = shard.with_name(shard.name + SUFFIX)
    if pack_file(shard, container).xxh3 != xxh3:
        container.unlink()
        raise RecordError(f"{shard.name} does not have the digest that the ledger says; it was left as it is.")
    return container.stat().st_size


def _settle(paths: RunPaths, ledger: Ledger, row: ShardRow) -> None:
    ledger.mark_stored(row.index, "compressed")
    paths.shard(row.index).unlink()
