"""The start of a session of detached work: checks the run's identity, and finds the finished and the open records.

Runs on the host under the run's lock, before any request is sent. Makes disk and ledger agree again, however the
session before ended: afterwards, exactly the records without a valid row are open.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote.shared import ranges as sets
from remote.shared.files import ASIDE, make_directory
from remote.shared.messages.extract import Assignment, Counts
from remote.shared.messages.run import RunIdentity, refuse_other_run
from remote.shared.paths import COMPRESSED_SUFFIX, RunPaths, shard_name
from remote.work.known import OTHER_RUN, read_identity
from remote.work.ledger import Ledger, Row
from remote.work.lock import shards_held

if TYPE_CHECKING:
    # It imports numpy, which read-only verbs should not have to import.
    from remote.work.assignment import Work
    from remote.work.holding import Holding

PREFIX_CHARS = 16


def nonce_prefix(paths: RunPaths) -> str:
    """Return the prefix of all nonces of this run, by which its dumps are recognised without the ledger."""
    return hashlib.blake2b(os.fsencode(paths.root.resolve()), digest_size=PREFIX_CHARS // 2).hexdigest()


@dataclass
class Opened:
    """A session's start: its nonce, the nonces of all sessions of this run, the begun records, and the counts."""

    nonce: str
    nonces: set[str]
    positions: list[int]
    counts: Counts


def begin(paths: RunPaths, holding: Holding, refused: Iterable[tuple[int, str]]) -> Opened:
    """Check the identity, reconcile shards with rows, quarantine `refused` positions, and list begun records."""
    work = holding.work
    make_directory(paths.shards)
    nonce = nonce_prefix(paths) + secrets.token_hex(6)
    with Ledger(paths.ledger) as ledger:
        check_identity(ledger, paths, work.assignment.identity)
        reconcile(ledger, paths)
        _refuse(ledger, work, refused)
        ledger.begin_session(nonce)
        return Opened(nonce, ledger.nonces(), holding.open(ledger.states()), counted(ledger, work.assignment))


def check_identity(ledger: Ledger, paths: RunPaths, identity: RunIdentity) -> None:
    """Note the run's identity; raise UsageError if the ledger has another identity."""
    noted = ledger.fact("identity")
    if noted is None:
        ledger.note({"identity": identity.model_dump_json()})
    else:
        refuse_other_run("This host's ledger", read_identity(noted, paths), identity, OTHER_RUN)


def reconcile(ledger: Ledger, paths: RunPaths) -> None:
    """Delete rows whose shard is missing or changed, and delete shards, complete or not, that have no row."""
    with shards_held(paths):
        _reconcile(ledger, paths)


def _reconcile(ledger: Ledger, paths: RunPaths) -> None:
    present = dict(_sizes(paths))
    done = {
        shard_name(index) + (COMPRESSED_SUFFIX if stored == "compressed" else ""): (index, size, stored)
        for index, (state, size, stored) in ledger.states().items()
        if state == "done"
    }
    lost = {
        index
        for name, (index, size, stored) in done.items()
        if name not in present or (stored == "plain" and present[name] != size)
    }
    ledger.forget(lost)
    for name in present:
        index, _, _ = done.get(name, (-1, 0, ""))
        is_shard = name.startswith("hs_") and name.removesuffix(COMPRESSED_SUFFIX).endswith(".safetensors")
        stranger = is_shard and (name not in done or index in lost)
        if stranger or name.startswith(ASIDE):
            (paths.shards / name).unlink(missing_ok=True)


def _sizes(paths: RunPaths) -> Iterator[tuple[str, int]]:
    """Return names and sizes in bytes of the shards' files, without a file that `inv compress` is just renaming."""
    for entry in os.scandir(paths.shards):
        with suppress(FileNotFoundError):
            yield entry.name, entry.stat().st_size


def counted(ledger: Ledger, assignment: Assignment) -> Counts:
    """Return the ledger's counts together with the host's assigned records."""
    return assigned(ledger.counts(assignment.ranges), assignment)


def assigned(counts: Counts, assignment: Assignment) -> Counts:
    """Fill in the assigned records and tokens. Tokens of answers that are not finished are an estimate."""
    left = assignment.records - counts.done - counts.freed - counts.quarantined
    counts.assigned, counts.tokens_assigned = assignment.records, assignment.tokens
    if assignment.expected_tokens:
        still = assignment.expected_tokens * left // max(1, assignment.records)
        counts.tokens_assigned = counts.tokens_done + still
    return counts


def _refuse(ledger: Ledger, work: Work, refused: Iterable[tuple[int, str]]) -> None:
    """Quarantine the refused records, except records that were given to other hosts."""
    settled, own = ledger.states(), work.assignment.ranges
    lengths, epoch = work.lengths(), work.assignment.epoch
    ledger.record(
        Row(index, "quarantined", int(lengths[position]), epoch, cause=cause, attempts=0)
        for position, cause in refused
        if (index := int(work.index[position])) not in settled and sets.contains(own, index)
    )
