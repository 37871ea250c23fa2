"""Gives records to hosts by tokens: each host gets consecutive indices whose tokens match its speed.

Pure; called by `hosts.plan.plan`. A dataset is shuffled when it is made, so consecutive indices are a fair sample of
all lengths, and no host's tokens differ from its share by more than half of the longest record. A greedy assignment
(longest record first, to the least loaded host) would gain less than one record for each host. A plan would then no
longer be a few ranges that a person can read, and a host could not read its tokens in one sweep.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from remote.shared import ranges as sets
from remote.shared.messages.dataset import Ranges


def tokens_of(lengths: Sequence[int], ranges: Ranges) -> int:
    """Return the number of tokens of the records in `ranges`."""
    return sum(sum(lengths[start:stop]) for start, stop in ranges)


def split(lengths: Sequence[int], records: Ranges, weights: Sequence[float]) -> list[Ranges]:
    """Cut `records` into consecutive parts, one for each weight, with tokens in proportion to the weights.

    With fewer records than hosts, a part can be empty. Weights may have any scale but must not all be 0.
    """
    parts: list[Ranges] = []
    ends = list(accumulate(_lengths_of(lengths, records)))
    total, weight_sum = (ends[-1] if ends else 0), sum(weights)
    start, share = 0, 0.0
    for weight in weights:
        share += weight
        stop = _nearest(ends, total * (share / weight_sum)) if len(parts) + 1 < len(weights) else len(ends)
        stop = max(start, stop)
        parts.append(_members(records, start, stop))
        start = stop
    return parts


def level(own: Sequence[float], weights: Sequence[float], pool: float) -> list[float]:
    """Share out `pool` tokens so that all hosts finish together; each has `own` tokens left and a weight.

    The host that would be idle first gets tokens first, as water fills connected vessels. A host that already has more
    than the others will have in the end gets nothing.
    """
    order = sorted(range(len(own)), key=lambda place: own[place] / weights[place])
    for filled in range(len(order), 0, -1):
        vessels = order[:filled]
        height = (pool + sum(own[place] for place in vessels)) / sum(weights[place] for place in vessels)
        if height * weights[vessels[-1]] >= own[vessels[-1]]:
            break
    return [max(0.0, height * weights[place] - own[place]) if place in vessels else 0.0 for place in range(len(own))]


def _lengths_of(lengths: Sequence[int], records: Ranges) -> list[int]:
    return [length for start, stop in records for length in lengths[start:stop]]


def _nearest(ends: list[int], tokens: float) -> int:
    """Return how many leading records come nearest to `tokens`; `ends` are their running totals."""
    after = bisect_left(ends, tokens)
    if after == len(ends):
        return after
    before_tokens = ends[after - 1] if after else 0
    return after if tokens - before_tokens < ends[after] - tokens else after + 1


def _members(records: Ranges, start: int, stop: int) -> Ranges:
    """Return the members of `records` from the `start`-th to before the `stop`-th."""
    found: Ranges = []
    passed = 0
    for low, high in records:
        first, last = max(start - passed, 0), min(stop - passed, high - low)
        if first < last:
            found.append((low + first, low + last))
        passed += high - low
        if passed >= stop:
            break
    return sets.union(found)
