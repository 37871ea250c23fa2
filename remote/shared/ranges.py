"""Sets of record indices as sorted, disjoint, half-open ranges: compact in a plan file, cheap at a million records.

Pure; called on both sides: by the plan, by a new plan, and by the leases of a host.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from remote.shared.messages.dataset import Ranges


def from_indices(indices: Iterable[int]) -> Ranges:
    """Return the set of `indices` (any order, repeats allowed)."""
    ranges: Ranges = []
    for index in sorted(indices):
        if ranges and index < ranges[-1][1]:
            continue
        if ranges and index == ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return ranges


def indices(ranges: Ranges) -> Iterator[int]:
    """Yield the members, ascending."""
    for start, stop in ranges:
        yield from range(start, stop)


def contains(ranges: Ranges, index: int) -> bool:
    """Return whether `index` is a member."""
    place = bisect_right(ranges, (index, 1 << 62)) - 1
    return place >= 0 and index < ranges[place][1]


def count(ranges: Ranges) -> int:
    """Return the number of members."""
    return sum(stop - start for start, stop in ranges)


def union(*sets: Ranges) -> Ranges:
    """Return the members of any of `sets`."""
    merged: Ranges = []
    for start, stop in sorted(part for one in sets for part in one):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def difference(one: Ranges, other: Ranges) -> Ranges:
    """Return the members of `one` that are not in `other`."""
    left: Ranges = []
    holes = iter([*other, (1 << 62, 1 << 62)])
    hole = next(holes)
    for start, stop in one:
        at = start
        while at < stop:
            while hole[1] <= at:
                hole = next(holes)
            if hole[0] > at:
                end = min(stop, hole[0])
                left.append((at, end))
                at = end
            else:
                at = min(stop, hole[1])
    return left


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """Return the members of both sets."""
    return difference(one, difference(one, other))
