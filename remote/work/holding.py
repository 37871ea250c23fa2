"""A host's records in a run's epoch: its share, minus records that leases gave to other hosts, plus records that came.

Runs on the host. The run's only process takes its records from here chunk by chunk. The verbs `lease` and `take`
(`remote.work.moving`) give chunks to other hosts and accept chunks from them, even if that process is not running. A
new epoch assigns every record again, and leases of older epochs no longer count.
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
"""A server has about this many chunks in flight. The smaller chunks are, the more records can still move."""
SHARE_CHUNKS = 200
"""A share has at least this many chunks, or one a record: its last chunks decide when the fleet ends."""


@dataclass
class Pool:
    """The chunks of the share, or of a lot, and the claims on them."""

    name: str
    first: int
    """Position of the pool's first record."""
    chunks: Chunks
    claims: Claims
    begun: int = 0
    """All chunks with a lower number are claimed."""

    def positions(self, chunk: int) -> range:
        """Return the positions of a chunk's records."""
        places = self.chunks.places(chunk)
        return range(self.first + places.start, self.first + places.stop)


class Holding:
    """The work of the newest epoch at the time of construction, without lots that came later."""

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
        """Return the assignment with the records that this host has to do now."""
        return effective(self._paths, self._share)

    def has_grown(self) -> bool:
        """Return whether lots came since the construction."""
        return any(lot.name not in self._came for lot in lots(self._paths, self.epoch))

    def open(self, finished: Container[int]) -> list[int]:
        """Return the positions of the records in chunks that this host claimed and has not finished."""
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
        """Yield the unclaimed chunks. The chunk that this host would begin last comes first."""
        for pool in reversed(self._pools):
            claimed = pool.claims.tokens()
            yield from ((pool, chunk) for chunk in reversed(range(len(pool.chunks))) if chunk not in claimed)

    def unfinished(self, pool: Pool, chunk: int, finished: Container[int]) -> list[int]:
        """Return the positions of a chunk's records that are not in `finished`."""
        return [place for place in pool.positions(chunk) if self._index(place) not in finished]

    def _index(self, position: int) -> int:
        return self._indices[position]


def _chunk_tokens(share: Assignment, tokens: int) -> int:
    """Return the tokens of a chunk in a pool of `tokens` tokens; the same for every reader of the assignment."""
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
