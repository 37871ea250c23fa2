"""The speed of a setting's collectives relative to the current setting, as one number. Pure."""

from __future__ import annotations

import statistics
from typing import Literal

from remote.shared.messages.tune import ScreenResult

Goal = Literal["decode", "prefill"]
DECODE_TOKENS = [1, 8, 64]
"""Tokens in a decode step's messages: batch sizes."""
PREFILL_TOKENS = [2048, 8192]
"""Tokens in a prefill step's messages: chunks."""


def tokens(goal: Goal) -> list[int]:
    """Return the message sizes, in tokens, that count for a goal.

    Decode and prefill are judged apart because they disagree. On two H200s the LL protocol was 8 % faster at 14 KB and
    3.7 times slower at 112 MB (`benchmarks/results/collectives-*.md`).
    """
    return DECODE_TOKENS if goal == "decode" else PREFILL_TOKENS


def speedup(result: ScreenResult, against: ScreenResult) -> float:
    """Return the geometric mean, over operations and sizes, of other time / own time; above 1 is faster.

    The result is 0 if the setting crashed, hung or was refused, or has no measurement in common with the other.
    """
    if result.status != "ok" or against.status != "ok":
        return 0.0
    times, others = _medians(result), _medians(against)
    ratios = [others[key] / times[key] for key in times if key in others]
    return statistics.geometric_mean(ratios) if ratios else 0.0


def _medians(result: ScreenResult) -> dict[tuple[str, int], float]:
    return {(sample.operation, sample.size_bytes): statistics.median(sample.microseconds) for sample in result.samples}
