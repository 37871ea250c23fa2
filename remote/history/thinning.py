"""What a history keeps of its past: fine points for an hour, coarser ones for a day, coarser still beyond.

Pure functions; the store applies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from remote.shared.messages.history import Point

FINE_SECONDS, MIDDLE_SECONDS, COARSE_SECONDS = 10.0, 60.0, 600.0
LEVELS = ((3600.0, FINE_SECONDS, MIDDLE_SECONDS), (86_400.0, MIDDLE_SECONDS, COARSE_SECONDS))
"""Age in seconds from which points of up to the first length are merged into points of the second length."""

_LAST = ("done", "failed", "freed", "open", "tokens_done", "bytes_done", "worked", "retries", "parity_checked")
_LARGEST = ("parity_excess",)


def merged(points: Sequence[Point], step: float) -> Point:
    """Return one point of `step` seconds: the last value of a counter, the highest temperature, otherwise the mean."""
    at = points[0].at // step * step
    values: dict[str, list[float]] = {}
    for point in points:
        for name, value in point.values.items():
            values.setdefault(name, []).append(value)
    return Point(at=at, step=step, values={name: _one(name, given) for name, given in values.items()})


def in_buckets(points: Sequence[Point], step: float) -> list[list[Point]]:
    """The points, which are in order of time, by the `step` seconds that they fall into."""
    return [list(group) for _, group in groupby(points, key=lambda point: point.at // step)]


def at_most(points: Sequence[Point], most: int) -> list[Point]:
    """The points with neighbours merged until there are no more than `most` (at least 1)."""
    kept = list(points)
    if len(kept) <= most:
        return kept
    step = max(1.0, (kept[-1].at - kept[0].at) / most)
    while len(buckets := in_buckets(kept, step)) > most:
        step *= 2
    return [merged(bucket, step) for bucket in buckets]


def _one(name: str, given: Sequence[float]) -> float:
    if name in _LAST or name.startswith("waited."):
        return given[-1]
    if name in _LARGEST or name.endswith(".celsius"):
        return max(given)
    return sum(given) / len(given)
