"""Leases on a host's disk: what it was given by other hosts, what it gave away, and what it has to do because of that.

Runs on the host; quick to import, for the verbs that only look. A lot is what came at one time from one host, as it
lies here: `lot.json`, and beside it `tokens.safetensors`.
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
"""The pool of the records that the plan gives to this host; every lot is a pool of its own, by its name."""
LOT_FILE = "lot.json"


class Lot(Message):
    """Leases that came to this host together."""

    name: str
    """The first lease's id."""
    leases: list[Moved]
    tokens: int

    @property
    def ranges(self) -> Ranges:
        """All records of the lot."""
        return sets.union(*(lease.ranges for lease in self.leases))


def lots(paths: RunPaths, epoch: int) -> list[Lot]:
    """What this host was given in an epoch, always in the same order."""
    folder = paths.lots(epoch)
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [_read(folder / name / LOT_FILE) for name in names if not name.startswith(ASIDE)]


def taken(paths: RunPaths, epoch: int) -> list[Moved]:
    """The leases that this host was given in an epoch."""
    return [lease for lot in lots(paths, epoch) for lease in lot.leases]


def given(paths: RunPaths, assignment: Assignment) -> list[Moved]:
    """The leases by which records of this host, those of its lots too, went to others in the assignment's epoch."""
    root = paths.claims(assignment.epoch, SHARE).parent
    pools = sorted(root.iterdir()) if root.is_dir() else []
    return [
        Moved(id=claim.lease, giver=assignment.host, holder=claim.holder, ranges=claim.ranges)
        for pool in pools
        for claim in Claims(pool).all().values()
        if claim.lease
    ]


def effective(paths: RunPaths, assignment: Assignment) -> Assignment:
    """The assignment with the records that are this host's to do by now: without those that went, with those that came.

    What it had finished of a chunk before the chunk went stays its own.
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
            f"{path}, which tells of records that came from another host, could not be read: {type(error).__name__}.",
            remedy="A new epoch gives every open record out anew: `inv extract` with another set of --hosts.",
        ) from error
