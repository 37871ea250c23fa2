"""Takes a cluster's published chunks into the run's ledger and shards, so that the run looks like a single host's run.

Called by the verbs that read a run, on the login host, the only machine that opens this ledger; replicas never open it.
Each step can be interrupted and repeated, even by two processes at once: a shard is linked to its place before its row
is committed, and every process commits the same row for it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from remote.shared import ranges as sets
from remote.shared.errors import HostError, UsageError
from remote.shared.files import fsync_directory, make_directory, read_own
from remote.shared.leases.queue import LEASE_SECONDS
from remote.shared.leases.results import Results
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.extract import Counts, ExtractorStatus
from remote.shared.messages.replica import ChunkRows, ReplicaSpec
from remote.shared.paths import ROWS_FILE, RunPaths
from remote.work.epochs import newest, read_description
from remote.work.ledger import Ledger, Row

_GATHERED = ("chunk {} is here", "chunk {} of round {} is here")


def is_shared_out(paths: RunPaths) -> bool:
    """Return whether a cluster's replicas do the run."""
    return paths.replicas.is_file()


def read_spec(paths: RunPaths) -> ReplicaSpec:
    """Return the replicas' specification; raises UsageError if it is damaged, or cannot be read on this machine."""
    try:
        return ReplicaSpec.model_validate_json(read_own(paths.replicas))
    except OSError as error:
        raise UsageError(
            f"{paths.replicas} cannot be read on this node: {error.strerror}.",
            remedy="The cluster's `workdir` must be on a file system that the login host and the nodes share.",
        ) from error
    except ValidationError as error:
        raise UsageError(
            f"{paths.replicas} is damaged.", remedy="Move the file away; `inv extract --cluster` writes it again."
        ) from error


def in_round(paths: RunPaths, spec: ReplicaSpec) -> RunPaths:
    """Return the run's folder with the queue of the round that the replicas work on."""
    return replace(paths, round=spec.round)


def open_records(paths: RunPaths) -> Ranges:
    """Return the records of the run's assignment that have no row in its ledger."""
    with Ledger(paths.ledger, to_read=True) as ledger:
        finished = sets.from_indices(sorted(ledger.states()))
    return sets.difference(read_description(newest(paths)).ranges, finished)


def take_in(paths: RunPaths) -> None:
    """Take in every chunk that was published since the last call. Do nothing for a run without replicas."""
    if not is_shared_out(paths):
        return
    paths = in_round(paths, read_spec(paths))
    results = Results(paths.queue / "published")
    make_directory(paths.shards)
    with Ledger(paths.ledger) as ledger:
        if ledger.fact("identity") is None:
            ledger.note({"identity": read_description(newest(paths)).identity.model_dump_json()})
        for chunk in results.chunks():
            if ledger.fact(_gathered(paths, chunk)) is None:
                _take_in(paths, ledger, results, chunk)


def living(paths: RunPaths) -> list[str]:
    """Return the replicas whose last sign of life is less than a lease old, by the file system's own clock."""
    beats = in_round(paths, read_spec(paths)).queue / "beats"
    if not beats.is_dir():
        return []
    probe = beats / f".now-{os.getpid()}"
    probe.touch()
    now = probe.stat().st_mtime
    probe.unlink()
    found = []
    for entry in sorted(beats.iterdir()):
        with suppress(FileNotFoundError):
            if not entry.name.startswith(".") and now - entry.stat().st_mtime < LEASE_SECONDS:
                found.append(entry.name)
    return found


def status_by(counts: Counts, replicas: list[str]) -> ExtractorStatus:
    """Return the status of a run of replicas, from its open chunks and its living replicas."""
    if counts.assigned and counts.done + counts.freed + counts.quarantined >= counts.assigned:
        return "complete"
    return "running" if replicas else "stopped"


def _take_in(paths: RunPaths, ledger: Ledger, results: Results, chunk: int) -> None:
    folder = results.path(chunk)
    try:
        told = ChunkRows.model_validate_json(read_own(folder / ROWS_FILE))
        rows = [_row(row) for row in told.rows]
    except (OSError, ValidationError, TypeError) as error:
        raise HostError(f"The published chunk {folder} could not be read: {type(error).__name__}.") from error
    shards = [entry for entry in folder.iterdir() if entry.name.startswith("hs_")]
    for shard in shards:
        with suppress(FileExistsError):
            os.link(shard, paths.shards / shard.name)
    fsync_directory(paths.shards)
    ledger.record(rows)
    ledger.note({_gathered(paths, chunk): told.holder})
    for shard in shards:
        shard.unlink(missing_ok=True)


def _gathered(paths: RunPaths, chunk: int) -> str:
    """Return the name of the ledger's fact that a chunk was taken in."""
    return _GATHERED[paths.round > 0].format(chunk, paths.round)


def _row(values: dict[str, Any]) -> Row:
    return Row(**values)
