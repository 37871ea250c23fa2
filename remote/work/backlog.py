"""The records that a run still has to send: open records in order, and records that wait for another attempt.

Runs on the host inside the extractor's event loop; memory only.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

RETRY_SECONDS = 0.5
RETRY_LIMIT_SECONDS = 60.0


@dataclass(frozen=True)
class Task:
    """One attempt at one record: its position in the assignment, and the results of earlier attempts."""

    position: int
    attempt: int = 1
    failures: int = 0
    """Attempts that failed and may have been the record's fault."""
    deaths: int = 0
    """How often a server died or restarted while the record was in flight."""


class Backlog:
    """Open records in order. A retry comes before new records once its pause is over."""

    def __init__(self, positions: Iterable[int]) -> None:
        self._fresh = deque(Task(position) for position in positions)
        self._later: list[tuple[float, int, Task]] = []
        self._pushed = 0

    def add(self, positions: Iterable[int]) -> None:
        """Append further records."""
        self._fresh.extend(Task(position) for position in positions)

    @property
    def has_fresh(self) -> bool:
        """Return whether a record that was never tried is waiting."""
        return bool(self._fresh)

    def __len__(self) -> int:
        return len(self._fresh) + len(self._later)

    def peek(self, now: float) -> Task | None:
        """Return the task that `take` would return, or None while nothing is due."""
        if self._later and self._later[0][0] <= now:
            return self._later[0][2]
        return self._fresh[0] if self._fresh else None

    def take(self, now: float) -> Task:
        """Remove and return the next task; raises IndexError if none is due."""
        if self._later and self._later[0][0] <= now:
            return heapq.heappop(self._later)[2]
        return self._fresh.popleft()

    def retry(self, task: Task, now: float, *, failed: bool = False, died: bool = False) -> None:
        """Put a task back for another attempt: after a growing pause if it failed, else at once."""
        again = replace(task, attempt=task.attempt + 1, failures=task.failures + failed, deaths=task.deaths + died)
        self._pushed += 1
        heapq.heappush(self._later, (now + (_pause(again.failures) if failed else 0.0), self._pushed, again))


def _pause(failures: int) -> float:
    """Return the seconds before the next attempt: doubled each time, capped, and spread randomly."""
    return min(RETRY_SECONDS * 2.0 ** (failures - 1), RETRY_LIMIT_SECONDS) * random.uniform(0.75, 1.25)  # noqa: S311
