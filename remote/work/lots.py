"""Leases on a host's disk: records that it got from other hosts, records that it gave away, and its resulting work.

Runs on the host; quick to import, for read-only verbs. A lot is a folder with the records that came from one host in
one call: `lot.json` and `tokens.safetensors`.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from remote.shared import ranges as sets
from remote.shared.errors import HostError
from remote.shared.files import ASIDE, read_own
from remote.shared.leases.claims import Claims
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.envelope import Message
from remote.shared.messages.extract import Assignment
from remote.shared.messages.lease import Moved
from remote.shared.paths import RunPaths

SHARE = "share"
"""The name of the pool with the plan's own records for this host. Every lot is a pool under its own name."""
LOT_FILE = "lot.json"


class Lot(Message):
    """Leases that came to this host in one call."""

    name: str
    """The id of the first lease."""
    leases: list[Moved]
    tokens: int

    @property
    def ranges(self) -> Ranges:
        """The indices of all records of the lot."""
        return sets.union(*(lease.ranges for lease in self.leases))


def lots(paths: RunPaths, epoch: int) -> list[Lot]:
    """Return the lots that this host was given in an epoch, always in the same order."""
    folder = paths.lots(epoch)
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [_read(folder / name / LOT_FILE) for name in names if not name.startswith(ASIDE)]


def taken(paths: RunPaths, epoch: int) -> list[Moved]:
    """Return the leases that this host was given in an epoch."""
    return [lease for lot in lots(paths, epoch) for lease in lot.leases]


def given(paths: RunPaths, assignment: Assignment) -> list[Moved]:
    """Return the leases that gave records of this host, including records of its lots, to other hosts in this epoch."""
    root = paths.claims(assignment.epoch, SHARE).parent
    pools = sorted(root.iterdir()) if root.is_dir() else []
    return [
        Moved(id=claim.lease, giver=assignment.host, holder=claim.holder, ranges=claim.ranges)
        for pool in pools
        for claim in Claims(pool).all().values()
        if claim.lease
    ]


def effective(paths: RunPaths, assignment: Assignment) -> Assignment:
    """Return the assignment with the records that this host has to do now: without records given away, with lots.

    If a chunk was given away, the records that this host had finished before remain its own.
    """
    held = [(SHARE, assignment.ranges, assignment.tokens)]
    held += [(lot.name, lot.ranges, lot.tokens) for lot in lots(paths, assignment.epoch)]
    kept: list[Ranges] = []
    total = 0
    for name, ranges, tokens in held:
        went = [one for one in Claims(paths.claims(assignment.epoch, name)).all().values() if one.lease]
        kept.append(sets.difference(ranges, sets.union(*(one.ranges for one in went))))
        total += tokens - sum(one.tokens for one in went)
    ranges = sets.union(*kept)
    return assignment.model_copy(update={"ranges": ranges, "records": sets.count(ranges), "tokens": total})


def _read(path: Path) -> Lot:
    try:
        return Lot.model_validate_json(read_own(path))
    except (OSError, ValidationError) as error:
        raise HostError(
            f"{path}, which lists records that came from another host, could not be read: {type(error).__name__}.",
            remedy="Start a new epoch, which assigns every open record again: `inv extract` with another set of "
            "--hosts.",
        ) from error
