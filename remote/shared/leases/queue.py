"""A run's chunks on a shared folder: replicas take them, and take over the chunks of a dead or slow replica.

Called by replicas, on any number of machines that share the folder. There is no server: a replica claims the next chunk
itself. A holder shows that it lives by touching its beat. All ages are measured with the shared file system's own
clock, because the machines' clocks differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from remote.shared.files import FILE_MODE, make_directory
from remote.shared.leases.claims import Claim, Claims, chunks_on, shelves
from remote.shared.leases.results import Results
from remote.shared.leases.shelves import Shelves
from remote.shared.paths import safe_name

LEASE_SECONDS = 120.0
"""A holder without a beat for so long counts as dead."""
LOOKS = 4
"""Shelves with unpublished chunks that one search for a dead or slow holder reads; the next search reads others."""
IDLE_SECONDS = 2.0
IDLE_SHARE = 4


def idle_seconds(looks: int, lease_seconds: float) -> float:
    """Return how long an idle holder waits after `looks` vain searches: twice as long each time, to a quarter lease."""
    return min(IDLE_SECONDS * float(2 ** min(looks, 10)), max(IDLE_SECONDS, lease_seconds / IDLE_SHARE))


def patience_seconds(taken: Iterable[float], lease_seconds: float) -> float:
    """Return the seconds after which a chunk counts as slow: twice the median here, and at least a lease."""
    ordered = sorted(taken)
    return max(lease_seconds, 2 * ordered[len(ordered) // 2] if ordered else 0.0)


@dataclass
class Queue:
    """The queue as one holder sees it."""

    folder: Path
    count: int
    """The number of the run's chunks."""
    holder: str
    """`<replica>.<attempt>`; an attempt takes over the chunks of the replica's earlier attempts."""
    lease_seconds: float = LEASE_SECONDS
    _seen: dict[tuple[int, int], Claim] = field(init=False, default_factory=dict)
    """Claims that were read, by chunk and token; a claim never changes."""
    _unclaimed: list[int] = field(init=False, default_factory=list)
    """Chunks of one shelf that were unclaimed when it was last read."""

    def __post_init__(self) -> None:
        safe_name(self.holder, "replica")
        self.claims = Claims(self.folder / "claims")
        self.results = Results(self.folder / "published")
        self._claimed = Shelves(self.folder / "marks" / "claimed", self.count)
        self._published = Shelves(self.folder / "marks" / "published", self.count)
        self._beats = make_directory(self.folder / "beats")
        self._draw = Random(self.holder)  # noqa: S311 - so that replicas don't race for the same chunks
        self._start = self._draw.randrange(max(1, len(shelves(self.count))))
        self.beat()

    def beat(self) -> float:
        """Show that this holder lives; returns the shared file system's time."""
        path = self._beats / self.holder
        path.touch(mode=FILE_MODE)
        return path.stat().st_mtime

    def leave(self) -> None:
        """Show that this holder is gone, so that others may take over its chunks at once."""
        (self._beats / self.holder).unlink(missing_ok=True)

    def take(self) -> Claim | None:
        """Claim a chunk that is unclaimed or whose holder is dead; return None if there is none now."""
        while (chunk := self._next_unclaimed()) is not None:
            claim = Claim(chunk=chunk, token=1, holder=self.holder)
            if self.claims.claim(claim):
                return claim
            self._unclaimed.clear()  # another holder works on this shelf: to read it again costs less than many tries
        return self._take_over()

    def is_over(self) -> bool:
        """Return whether every chunk is published."""
        return next(self._unpublished(), None) is None

    def take_slow(self, seconds: float) -> Claim | None:
        """Claim a chunk that a living holder has had for over `seconds`; the first one to publish it counts."""
        now = self.beat()
        for claim in self._held():
            if not self._is_mine(claim) and now - self.claims.made_at(claim) > seconds and (mine := self._next(claim)):
                return mine
        return None

    def _next_unclaimed(self) -> int | None:
        while not self._unclaimed:
            shelf = next(self._claimed.from_here(self._start), None)
            if shelf is None:
                return None
            claimed = self.claims.tokens(shelf)
            self._unclaimed = [chunk for chunk in chunks_on(shelf, self.count) if chunk not in claimed]
            self._draw.shuffle(self._unclaimed)
            self._start = shelf
            if not self._unclaimed:
                self._claimed.mark(shelf)
        return self._unclaimed.pop()

    def _take_over(self) -> Claim | None:
        now = self.beat()
        dead: dict[str, bool] = {}
        for claim in self._held():
            if claim.holder not in dead:
                dead[claim.holder] = self._is_earlier_attempt(claim) or self._is_dead(claim.holder, now)
            if dead[claim.holder] and (mine := self._next(claim)):
                return mine
        return None

    def _unpublished(self) -> Iterator[tuple[int, set[int]]]:
        """Yield shelves with unpublished chunks, and these chunks."""
        for shelf in self._published.at_random(self._draw):
            left = set(chunks_on(shelf, self.count)).difference(self.results.chunks(shelf))
            if left:
                yield shelf, left
            else:
                self._published.mark(shelf)

    def _held(self) -> Iterator[Claim]:
        """Yield the newest claims of unpublished chunks, on a few shelves."""
        for _, (shelf, left) in zip(range(LOOKS), self._unpublished(), strict=False):
            tokens = self.claims.tokens(shelf)
            yield from (self._claim(chunk, tokens[chunk]) for chunk in sorted(left) if chunk in tokens)

    def _claim(self, chunk: int, token: int) -> Claim:
        if (chunk, token) not in self._seen:
            self._seen[chunk, token] = self.claims.read(chunk, token)
        return self._seen[chunk, token]

    def _next(self, claim: Claim) -> Claim | None:
        """Make and return the claim with the next token; None if another holder made it first."""
        mine = Claim(chunk=claim.chunk, token=claim.token + 1, holder=self.holder)
        return mine if self.claims.claim(mine) else None

    def _is_mine(self, claim: Claim) -> bool:
        return claim.holder == self.holder

    def _is_earlier_attempt(self, claim: Claim) -> bool:
        replica, _, attempt = self.holder.rpartition(".")
        earlier, _, number = claim.holder.rpartition(".")
        return earlier == replica and attempt.isdecimal() and number.isdecimal() and int(number) < int(attempt)

    def _is_dead(self, holder: str, now: float) -> bool:
        if holder == self.holder:
            return False
        try:
            return now - (self._beats / holder).stat().st_mtime > self.lease_seconds
        except FileNotFoundError:
            return True
