"""A cluster's run as one host's: published chunks come into the run's ledger and among its shards. On the login host.

Called by the verbs that look at a run, on the one machine that opens this ledger; replicas never do. Each step can be
cut anywhere and done again, by two at once: a shard is linked to its place before its row is committed, and a row of a
chunk is the same whoever commits it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from remote.shared.errors import HostError, UsageError
from remote.shared.files import fsync_directory, make_directory, read_own
from remote.shared.leases.queue import LEASE_SECONDS
from remote.shared.leases.results import Results
from remote.shared.messages.extract import Counts, ExtractorStatus
from remote.shared.messages.replica import ChunkRows, ReplicaSpec
from remote.shared.paths import ROWS_FILE, RunPaths
from remote.work.epochs import newest, read_description
from remote.work.ledger import Ledger, Row

_GATHERED = "chunk {} is here"


def is_shared_out(paths: RunPaths) -> bool:
    """Whether the run is done by a cluster's replicas."""
    return paths.replicas.is_file()


def read_spec(paths: RunPaths) -> ReplicaSpec:
    """What the run's replicas do; raises UsageError if that is damaged, or not to be seen on this machine."""
    try:
        return ReplicaSpec.model_validate_json(read_own(paths.replicas))
    except OSError as error:
        raise UsageError(
            f"{paths.replicas} cannot be read on this node: {error.strerror}.",
            remedy="The cluster's `workdir` must lie on a file system that login host and nodes share.",
        ) from error
    except ValidationError as error:
        raise UsageError(
            f"{paths.replicas} is damaged.", remedy="Move it away; `inv extract --cluster` writes it anew."
        ) from error


def take_in(paths: RunPaths) -> None:
    """Take in every chunk that was published since; nothing for a run of this host's own."""
    if not is_shared_out(paths):
        return
    results = Results(paths.queue / "published")
    make_directory(paths.shards)
    with Ledger(paths.ledger) as ledger:
        if ledger.fact("identity") is None:
            ledger.note({"identity": read_description(newest(paths)).identity.model_dump_json()})
        for chunk in results.chunks():
            if ledger.fact(_GATHERED.format(chunk)) is None:
                _take_in(paths, ledger, results, chunk)


def living(paths: RunPaths) -> list[str]:
    """Replicas that showed within a lease that they live, by the file system's own clock."""
    beats = paths.queue / "beats"
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
    """How a shared-out run stands: by what is left of it, and by who lives."""
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
    ledger.note({_GATHERED.format(chunk): told.holder})
    for shard in shards:
        shard.unlink(missing_ok=True)


def _row(values: dict[str, Any]) -> Row:
    return Row(**values)
