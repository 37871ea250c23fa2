"""What a run costs: dollars so far and to come, a million tokens, a TB. Laptop's side, pure.

A host costs its `cost_per_hour` for as long as it works on the run, paused and waiting hours included: the box is
paid for meanwhile. A host without that setting makes the sum unknown, never smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bill:
    """Dollars of one host, or of several; None where it is not known."""

    spent: float | None
    to_come: float | None
    tokens: int = 0
    size_bytes: int = 0

    @property
    def per_million_tokens(self) -> float | None:
        """Of what was spent so far."""
        return None if self.spent is None or not self.tokens else self.spent / self.tokens * 1e6

    @property
    def per_terabyte(self) -> float | None:
        """Of what was spent so far, for 10^12 bytes of states."""
        return None if self.spent is None or not self.size_bytes else self.spent / self.size_bytes * 1e12


def bill(
    cost_per_hour: float | None, worked_seconds: float | None, left_seconds: float | None, tokens: int, size_bytes: int
) -> Bill:
    """One host's bill."""
    return Bill(_dollars(cost_per_hour, worked_seconds), _dollars(cost_per_hour, left_seconds), tokens, size_bytes)


def total(bills: Iterable[Bill]) -> Bill:
    """The sum; unknown as soon as one part is."""
    every = list(bills)
    return Bill(
        _sum([one.spent for one in every]),
        _sum([one.to_come for one in every]),
        sum(one.tokens for one in every),
        sum(one.size_bytes for one in every),
    )


def dollars(amount: float) -> str:
    """`$1,234` from a hundred dollars on, with cents below, with more digits below a cent."""
    if amount >= 100:
        return f"${amount:,.0f}"
    return f"${amount:.2f}" if amount >= 0.01 or not amount else f"${amount:.2g}"


def said(one: Bill) -> str:
    """`$12.40 so far, $88 to come, $0.31 a million tokens, $24 a TB`; "" if nothing is known."""
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
