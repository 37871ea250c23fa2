"""Merges old points of a history: fine points for an hour, coarser points for a day, and coarser still after that.

Pure functions; the store applies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from remote.shared.messages.history import Point

FINE_SECONDS, MIDDLE_SECONDS, COARSE_SECONDS = 10.0, 60.0, 600.0
LEVELS = ((3600.0, FINE_SECONDS, MIDDLE_SECONDS), (86_400.0, MIDDLE_SECONDS, COARSE_SECONDS))
"""(age, length, step) in seconds: at this age, points of up to `length` are merged into points of `step`."""

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
    """Return the points, which are in order of time, grouped by intervals of `step` seconds."""
    return [list(group) for _, group in groupby(points, key=lambda point: point.at // step)]


def at_most(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points (at least 1), with neighbours merged."""
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
