"""A run's chunks on a shared folder: replicas take them, and take over what a dead or slow one holds.

Called by replicas, on any number of machines that share the folder. Nobody hands chunks out: a replica claims the next
one itself. A holder shows that it lives by touching its beat; all ages are measured with the shared file system's own
clock, since machines' clocks differ.
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
"""A holder that has not beaten for so long is taken for dead."""
LOOKS = 4
"""Shelves with unpublished chunks that one look for a dead or slow holder's chunk reads; the next look reads others."""
IDLE_SECONDS = 2.0
IDLE_SHARE = 4


def idle_seconds(looks: int, lease_seconds: float) -> float:
    """How long an idle holder waits after so many looks in vain: twice as long each time, up to a quarter lease."""
    return min(IDLE_SECONDS * float(2 ** min(looks, 10)), max(IDLE_SECONDS, lease_seconds / IDLE_SHARE))


def patience_seconds(taken: Iterable[float], lease_seconds: float) -> float:
    """Seconds after which a chunk counts as held up: twice what one took here, and a lease at least."""
    ordered = sorted(taken)
    return max(lease_seconds, 2 * ordered[len(ordered) // 2] if ordered else 0.0)


@dataclass
class Queue:
    """The queue as one holder sees it."""

    folder: Path
    count: int
    """Chunks of the run."""
    holder: str
    """`<replica>.<attempt>`: an attempt takes over what the replica's earlier attempts held."""
    lease_seconds: float = LEASE_SECONDS
    _seen: dict[tuple[int, int], Claim] = field(init=False, default_factory=dict)
    """Claims that were read before, by chunk and token; a claim never changes."""
    _unclaimed: list[int] = field(init=False, default_factory=list)
    """Chunks of one shelf that nobody had claimed at the last look."""

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
        """Show that this holder is gone: what it holds is anybody's at once."""
        (self._beats / self.holder).unlink(missing_ok=True)

    def take(self) -> Claim | None:
        """Claim a chunk: one that nobody has claimed, or one whose holder is dead; None if there is none now."""
        while (chunk := self._next_unclaimed()) is not None:
            claim = Claim(chunk=chunk, token=1, holder=self.holder)
            if self.claims.claim(claim):
                return claim
            self._unclaimed.clear()  # somebody else is at work here: one look costs less than many tries
        return self._take_over()

    def is_over(self) -> bool:
        """Whether every chunk is published."""
        return next(self._unpublished(), None) is None

    def take_slow(self, seconds: float) -> Claim | None:
        """Claim a chunk that a living holder has had for longer than `seconds`; whoever publishes it first, counts."""
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
        """Shelves with unpublished chunks, and these chunks."""
        for shelf in self._published.at_random(self._draw):
            left = set(chunks_on(shelf, self.count)).difference(self.results.chunks(shelf))
            if left:
                yield shelf, left
            else:
                self._published.mark(shelf)

    def _held(self) -> Iterator[Claim]:
        """The newest claims of chunks that are not published, on a few shelves."""
        for _, (shelf, left) in zip(range(LOOKS), self._unpublished(), strict=False):
            tokens = self.claims.tokens(shelf)
            yield from (self._claim(chunk, tokens[chunk]) for chunk in sorted(left) if chunk in tokens)

    def _claim(self, chunk: int, token: int) -> Claim:
        if (chunk, token) not in self._seen:
            self._seen[chunk, token] = self.claims.read(chunk, token)
        return self._seen[chunk, token]

    def _next(self, claim: Claim) -> Claim | None:
        """The claim with the next token, if nobody else makes it first."""
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
