"""A run's chunks on a shared folder: replicas take them, and take over what a dead or slow one holds.

Called by replicas, on any number of machines that share the folder. Nobody hands chunks out: a replica claims the next
one itself. A holder shows that it lives by touching its beat; all ages are measured with the shared file system's own
clock, since machines' clocks differ.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from remote.shared.files import make_directory
from remote.shared.leases.claims import Claim, Claims
from remote.shared.leases.results import Results
from remote.shared.paths import safe_name

LEASE_SECONDS = 120.0
"""A holder that has not beaten for so long is taken for dead."""


@dataclass
class Queue:
    """The queue as one holder sees it."""

    folder: Path
    count: int
    """Chunks of the run."""
    holder: str
    """`<replica>.<attempt>`: an attempt takes over what the replica's earlier attempts held."""
    lease_seconds: float = LEASE_SECONDS
    _fresh: Iterator[int] = field(init=False)
    _start: int = field(init=False)

    def __post_init__(self) -> None:
        safe_name(self.holder, "replica")
        self.claims = Claims(self.folder / "claims")
        self.results = Results(self.folder / "published")
        drawn = int.from_bytes(hashlib.blake2b(self.holder.encode(), digest_size=8).digest(), "big")
        start = drawn % max(1, self.count)  # so that replicas don't race for the same chunks
        self._start = start
        self._fresh = self._unclaimed()
        self.beat()

    def beat(self) -> float:
        """Show that this holder lives; returns the shared file system's time."""
        path = make_directory(self.folder / "beats") / self.holder
        path.touch(mode=0o600)
        os.utime(path)
        return path.stat().st_mtime

    def leave(self) -> None:
        """Show that this holder is gone: what it holds is anybody's at once."""
        self._beat_of(self.holder).unlink(missing_ok=True)

    def take(self) -> Claim | None:
        """Claim a chunk: one that nobody has claimed, or one whose holder is dead; None if there is none now."""
        while (chunk := next(self._fresh, None)) is not None:
            claim = Claim(chunk=chunk, token=1, holder=self.holder)
            if self.claims.claim(claim):
                return claim
            self._fresh = self._unclaimed()  # somebody else is at work here: one look costs less than many tries
        return self._take_over()

    def _unclaimed(self) -> Iterator[int]:
        claimed = self.claims.tokens()
        order = (*range(self._start, self.count), *range(self._start))
        return iter([chunk for chunk in order if chunk not in claimed])

    def is_over(self) -> bool:
        """Whether every chunk is published."""
        return sum(1 for _ in self.results.chunks()) >= self.count

    def take_slow(self, seconds: float) -> Claim | None:
        """Claim a chunk that a living holder has had for longer than `seconds`; whoever publishes it first, counts."""
        now = self.beat()
        for claim in self._unpublished():
            if not self._is_mine(claim) and now - self.claims.made_at(claim) > seconds and (mine := self._next(claim)):
                return mine
        return None

    def _take_over(self) -> Claim | None:
        now = self.beat()
        for claim in self._unpublished():
            if (self._is_earlier_attempt(claim) or self._is_dead(claim.holder, now)) and (mine := self._next(claim)):
                return mine
        return None

    def _unpublished(self) -> Iterator[Claim]:
        """Claims whose chunks are not published; of the others, which are most, none is read."""
        published = set(self.results.chunks())
        for chunk in self.claims.tokens():
            if chunk not in published and (claim := self.claims.newest(chunk)) is not None:
                yield claim

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
            return now - self._beat_of(holder).stat().st_mtime > self.lease_seconds
        except FileNotFoundError:
            return True

    def _beat_of(self, holder: str) -> Path:
        return self.folder / "beats" / holder
