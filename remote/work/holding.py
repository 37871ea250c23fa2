"""What a host works on in a run's epoch: its share, without what went to others by leases, and with what came.

Runs on the host. The run's one process takes its records from here chunk by chunk; the verbs `lease` and `take`
(`remote.work.moving`) give chunks to other hosts and take theirs in, whether or not that process lives. A new epoch
gives every record out anew: leases of an older one count no more.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

import numpy as np

from remote.shared.leases.chunks import Chunks, cut
from remote.shared.leases.claims import Claim, Claims
from remote.shared.messages.extract import Assignment
from remote.shared.paths import RunPaths
from remote.work.assignment import Work, load, read_work
from remote.work.epochs import newest
from remote.work.lots import SHARE, effective, lots

SERVER_CHUNKS = 4
"""So many chunks are what a server may have in flight: little is begun that could still go to another host."""
SHARE_CHUNKS = 200
"""Of so many chunks a share consists, or of single records: its last chunks decide when the fleet ends."""


@dataclass
class Pool:
    """Work of one origin: the share, or a lot."""

    name: str
    first: int
    """Position of its first record."""
    chunks: Chunks
    claims: Claims
    begun: int = 0
    """All chunks below this one are claimed."""

    def positions(self, chunk: int) -> range:
        """Positions of a chunk's records."""
        places = self.chunks.places(chunk)
        return range(self.first + places.start, self.first + places.stop)


class Holding:
    """The newest epoch's work as it stood when this was made; lots that come later are not in it."""

    def __init__(self, paths: RunPaths) -> None:
        share = load(newest(paths))
        self.epoch = epoch = share.assignment.epoch
        came = lots(paths, epoch)
        self._paths, self._share, self._came = paths, share.assignment, {lot.name for lot in came}
        works = [share, *(read_work(paths.lots(epoch) / lot.name, share.assignment) for lot in came)]
        self.work = _joined(works, effective(paths, share.assignment))
        self._indices: list[int] = self.work.index.tolist()
        self._pools: list[Pool] = []
        first = 0
        for name, work in zip([SHARE, *(lot.name for lot in came)], works, strict=True):
            chunks = cut(work.lengths().tolist(), _chunk_tokens(share.assignment, len(work.token_ids)))
            self._pools.append(Pool(name, first, chunks, Claims(paths.claims(epoch, name))))
            first += len(work)

    def assignment(self) -> Assignment:
        """The assignment with the records that are this host's to do by now."""
        return effective(self._paths, self._share)

    def has_grown(self) -> bool:
        """Whether lots came since this was made."""
        return any(lot.name not in self._came for lot in lots(self._paths, self.epoch))

    def open(self, finished: Container[int]) -> list[int]:
        """Positions of the records that this host has begun with and not finished."""
        found: list[int] = []
        for pool in self._pools:
            for chunk, claim in pool.claims.all().items():
                went = _members(claim)
                found += [place for place in self.unfinished(pool, chunk, finished) if self._index(place) not in went]
        return found

    def begin(self, finished: Container[int]) -> list[int]:
        """Claim chunks until one has open records, and return their positions; [] if no chunk is left."""
        for pool in self._pools:
            while pool.begun < len(pool.chunks):
                chunk, pool.begun = pool.begun, pool.begun + 1
                if pool.claims.claim_here(chunk) and (positions := self.unfinished(pool, chunk, finished)):
                    return positions
        return []

    def untouched(self) -> Iterator[tuple[Pool, int]]:
        """The chunks that nobody has claimed, those that this host would begin last first."""
        for pool in reversed(self._pools):
            claimed = pool.claims.tokens()
            yield from ((pool, chunk) for chunk in reversed(range(len(pool.chunks))) if chunk not in claimed)

    def unfinished(self, pool: Pool, chunk: int, finished: Container[int]) -> list[int]:
        """Return the positions of a chunk's unfinished records, of this and of other hosts."""
        return [place for place in pool.positions(chunk) if self._index(place) not in finished]

    def _index(self, position: int) -> int:
        return self._indices[position]


def _chunk_tokens(share: Assignment, tokens: int) -> int:
    """Tokens of a chunk in a pool of so many; the same for everybody who reads the assignment."""
    return max(1, min(share.in_flight_tokens // SERVER_CHUNKS, tokens // SHARE_CHUNKS))


def _members(claim: Claim) -> set[int]:
    return {index for start, stop in claim.ranges for index in range(start, stop)}


def _joined(works: list[Work], assignment: Assignment) -> Work:
    if len(works) == 1:
        return replace(works[0], assignment=assignment)
    starts = np.cumsum([0, *(len(work.token_ids) for work in works)])
    offsets = [work.offset[:-1] + start for work, start in zip(works, starts, strict=False)]
    return Work(
        assignment,
        np.concatenate([work.index for work in works]),
        np.concatenate([*offsets, starts[-1:]]),
        np.concatenate([work.token_ids for work in works]),
    )
