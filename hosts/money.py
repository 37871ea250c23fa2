"""Computes a run's cost: dollars so far and to come, per million tokens, per TB. Laptop's side, pure.

A host costs its `cost_per_hour` while it works on the run, including paused and waiting hours, because the machine is
paid for meanwhile. If a host lacks that setting, the sum is unknown, and not smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bill:
    """Dollars of one host, or of several; None if they are unknown."""

    spent: float | None
    to_come: float | None
    tokens: int = 0
    size_bytes: int = 0

    @property
    def per_million_tokens(self) -> float | None:
        """Return the dollars spent so far for a million tokens."""
        return None if self.spent is None or not self.tokens else self.spent / self.tokens * 1e6

    @property
    def per_terabyte(self) -> float | None:
        """Return the dollars spent so far for 10^12 bytes of states."""
        return None if self.spent is None or not self.size_bytes else self.spent / self.size_bytes * 1e12


def bill(
    cost_per_hour: float | None, worked_seconds: float | None, left_seconds: float | None, tokens: int, size_bytes: int
) -> Bill:
    """Return one host's bill."""
    return Bill(_dollars(cost_per_hour, worked_seconds), _dollars(cost_per_hour, left_seconds), tokens, size_bytes)


def total(bills: Iterable[Bill]) -> Bill:
    """Return the sum of the bills; a part of it is unknown if it is unknown in one bill."""
    every = list(bills)
    return Bill(
        _sum([one.spent for one in every]),
        _sum([one.to_come for one in every]),
        sum(one.tokens for one in every),
        sum(one.size_bytes for one in every),
    )


def dollars(amount: float) -> str:
    """Return `$1,234` from a hundred dollars on, cents below that, and more digits below a cent."""
    if amount >= 100:
        return f"${amount:,.0f}"
    return f"${amount:.2f}" if amount >= 0.01 or not amount else f"${amount:.2g}"


def said(one: Bill) -> str:
    """Return `$12.40 so far, $88 to come, $0.31 a million tokens, $24 a TB`; "" if nothing is known."""
    parts = [
        f"{dollars(amount)} {what}"
        for amount, what in (
            (one.spent, "so far"),
            (one.to_come, "to come"),
            (one.per_million_tokens, "a million tokens"),
            (one.per_terabyte, "a TB"),
        )
        if amount is not None
    ]
    return ", ".join(parts)


def _dollars(cost_per_hour: float | None, seconds: float | None) -> float | None:
    return None if cost_per_hour is None or seconds is None else cost_per_hour * seconds / 3600


def _sum(amounts: list[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known and len(known) == len(amounts) else None
