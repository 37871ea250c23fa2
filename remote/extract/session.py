"""What a session of the extractor finds when it starts: whose run this is, what is finished, what is open.

Runs on the host under the run's lock, before any request is sent. Makes disk and ledger agree again after whatever
ended the session before: exactly the records without a valid row are open.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from remote.extract.assignment import Work
from remote.extract.known import OTHER_RUN, read_identity
from remote.extract.ledger import Ledger, Row
from remote.extract.leftovers import nonce_prefix
from remote.extract.lock import shards_held
from remote.parity.bands import NormBand
from remote.shared.errors import UsageError
from remote.shared.files import ASIDE, make_directory
from remote.shared.messages.extract import Counts
from remote.shared.messages.run import RunIdentity, refuse_other_run
from remote.shared.messages.server import ServerState
from remote.shared.paths import COMPRESSED_SUFFIX, RunPaths, shard_name

_OTHER_RUN = "Go back to what it was begun with, or give the changed run a name of its own."
_RESTART = (
    "`inv restart --mode {mode}` starts it with the inventory's `layers` and `final` as they are now; "
    "where those are not the run's, set them back first."
)


@dataclass
class Opened:
    """A session's start: its nonce, those of all sessions of this run, the open records, the norms seen so far."""

    nonce: str
    nonces: set[str]
    positions: list[int]
    counts: Counts
    band: NormBand


def begin(paths: RunPaths, work: Work) -> Opened:
    """Check the identity, reconcile shards with rows, refuse what no server can take, and list what is open."""
    make_directory(paths.shards)
    nonce = nonce_prefix(paths) + secrets.token_hex(6)
    with Ledger(paths.ledger) as ledger:
        check_identity(ledger, paths, work.assignment.identity)
        reconcile(ledger, paths)
        _refuse(ledger, work)
        ledger.begin_session(nonce)
        band = NormBand(work.assignment.identity.boundaries)
        for mean, largest in ledger.norms():
            band.observe(mean, largest)
        return Opened(nonce, ledger.nonces(), open_positions(ledger, work), counted(ledger, work), band)


def check_identity(ledger: Ledger, paths: RunPaths, identity: RunIdentity) -> None:
    """Note what the run is, or raise UsageError where it was begun as something else."""
    noted = ledger.fact("identity")
    if noted is None:
        ledger.note({"identity": identity.model_dump_json()})
    else:
        refuse_other_run("This host's ledger", read_identity(noted, paths), identity, OTHER_RUN)


def check_server(ledger: Ledger, run: str, identity: RunIdentity, state: ServerState) -> None:
    """Refuse a server whose capture is not the run's: other slots, another SGLang, another capture."""
    assert state.capture is not None
    captures, anew = f"the server {state.name!r} captures", _RESTART.format(mode=state.mode)
    _same(run, "boundaries", list(identity.boundaries), state.capture.boundaries, captures, anew)
    _same(run, "final", identity.final, state.capture.final, captures, anew)
    for name, value in (("SGLang", state.sglang), ("capture", state.capture.version)):
        before = ledger.fact(name)
        if before is None:
            ledger.note({name: value})
        else:
            _same(run, f"{name} version", before, value, f"the server {state.name!r} has")


def reconcile(ledger: Ledger, paths: RunPaths) -> None:
    """Forget rows whose shard is not there as it was, and delete shards (whole or aside) that have no row."""
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
    """Names and bytes of the files among the shards; one that `inv compress` has just renamed is left out."""
    for entry in os.scandir(paths.shards):
        with suppress(FileNotFoundError):
            yield entry.name, entry.stat().st_size


def open_positions(ledger: Ledger, work: Work) -> list[int]:
    """Positions of the assignment's records that have no row."""
    finished = ledger.states()
    return [position for position, index in enumerate(work.index.tolist()) if index not in finished]


def counted(ledger: Ledger, work: Work) -> Counts:
    """The ledger's counts beside what was assigned."""
    counts = ledger.counts(work.assignment.ranges)
    counts.assigned, counts.tokens_assigned = work.assignment.records, work.assignment.tokens
    return counts


def _refuse(ledger: Ledger, work: Work) -> None:
    finished = ledger.states()
    lengths, epoch = work.lengths(), work.assignment.epoch
    ledger.record(
        Row(index, "quarantined", int(lengths[position]), epoch, cause=cause, attempts=0)
        for position, cause in work.refusals()
        if (index := int(work.index[position])) not in finished
    )


def _same(
    run: str, what: str, before: object, now: object, who: str = "this assignment says", remedy: str = _OTHER_RUN
) -> None:
    if before != now:
        raise UsageError(
            f"The run {run!r} was begun with {what} {before!r}, and {who} {now!r}.",
            remedy=remedy,
        )
