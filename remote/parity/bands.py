"""Compares each slot's norm with the band of the run's earlier records. Host side, in the collector; pure arithmetic.

A flag is no verdict, because an unusual prompt can leave the band. It names a record that a person, or a canary, should
check. A slot with the wrong layer from the run's start never leaves its own band; only the canary finds that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

LEARN = 32
"""A band flags nothing before it has seen this many records."""
_DEVIATIONS = 8.0
_LEAST = math.log(1.25)
"""A band always reaches at least a quarter up and down, because the slots of long records vary little."""


@dataclass
class _Running:
    """The mean and spread of the logarithms so far, by Welford's method."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self.squares += step * (value - self.mean)

    @property
    def width(self) -> float:
        spread = math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0
        return max(_DEVIATIONS * spread, _LEAST)


@dataclass
class NormBand:
    """The bands of a run, one for each slot and statistic; observing the ledger's rows again rebuilds them."""

    boundaries: Sequence[int]
    _mean: list[_Running] = field(default_factory=list)
    _max: list[_Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._mean = [_Running() for _ in self.boundaries]
        self._max = [_Running() for _ in self.boundaries]

    def observe(self, mean_norm: Sequence[float], max_norm: Sequence[float]) -> list[str]:
        """Return a sentence for each norm outside of its band; a record within its bands adjusts them."""
        flags = []
        for what, bands, values in (("mean", self._mean, mean_norm), ("largest", self._max, max_norm)):
            for boundary, band, value in zip(self.boundaries, bands, values, strict=True):
                flag = _judge(what, boundary, band, value)
                if flag:
                    flags.append(flag)
                else:
                    band.add(math.log(value))
        return flags


def _judge(what: str, boundary: int, band: _Running, value: float) -> str:
    if not (math.isfinite(value) and value > 0):
        return f"The {what} norm at boundary {boundary} is {value}."
    if band.count < LEARN or abs(math.log(value) - band.mean) <= band.width:
        return ""
    low, high = math.exp(band.mean - band.width), math.exp(band.mean + band.width)
    return f"The {what} norm at boundary {boundary} is {value:.4g}; this run's are between {low:.4g} and {high:.4g}."
