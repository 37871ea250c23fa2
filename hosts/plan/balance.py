"""Records to hosts, by tokens: each host gets a run of consecutive indices whose tokens match its speed.

Pure; called by `hosts.plan.plan`. A dataset is shuffled when it is made, so consecutive indices are a fair sample
of all lengths, and no host's tokens are off its share by more than half of the longest record. What a greedy
assignment (longest first, to whoever is least loaded) would gain over that is less than one record a host; what it
would lose is that a plan is a few ranges that a person can read, and that a host reads its tokens in one sweep.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from remote.shared import ranges as sets
from remote.shared.messages.dataset import Ranges


def tokens_of(lengths: Sequence[int], ranges: Ranges) -> int:
    """Tokens of the records in `ranges`."""
    return sum(sum(lengths[start:stop]) for start, stop in ranges)


def split(lengths: Sequence[int], records: Ranges, weights: Sequence[float]) -> list[Ranges]:
    """Cut `records` into one consecutive part a weight, tokens in proportion to the weights.

    A part can be empty where there are fewer records than hosts. Weights are of any scale and not all 0.
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
    """Share `pool` tokens out so that all finish together, given that each has `own` tokens left and its weight.

    Like water in vessels: whoever would be idle first is filled first; one that has more than all others will have
    when the pool is empty gets nothing.
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
    """How many leading records come nearest to `tokens`; `ends` are their running totals."""
    after = bisect_left(ends, tokens)
    if after == len(ends):
        return after
    before_tokens = ends[after - 1] if after else 0
    return after if tokens - before_tokens < ends[after] - tokens else after + 1


def _members(records: Ranges, start: int, stop: int) -> Ranges:
    """The members of `records` from the `start`-th to before the `stop`-th."""
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
