"""The options of a search on one host, and its size: settings, measurements, server starts and minutes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from hosts.inventory.model import Host
from hosts.tune.grid import collectives, grid_of, with_flags
from hosts.tune.score import Goal

SCREENING_SECONDS = 8.0
"""Seconds for one setting's collectives on two H200s (`benchmarks/results/collectives-2026-11-29.json`)."""


KEPT_SHARE = 0.5
"""Each round of successive halving keeps this share of the settings and doubles the repetitions."""
MOST_ROUNDS = 4
BASELINE_EVERY = 8
"""Settings between two measurements of the current one: about a minute on an 8-GPU host."""


@dataclass(frozen=True)
class Plan:
    """One search on one host."""

    mode: str
    goal: Goal
    confirm: int = 3
    """How many NCCL settings besides the current one get real servers, with every combination of the grid's flags."""
    repetitions: int = 5
    """Repetitions of a confirming measurement."""
    deadline_seconds: float = 60.0
    """Seconds for one setting's screening; a setting that takes longer counts as hung."""
    fresh: bool = False
    """Discard the record of an unfinished search for the same host, mode and goal."""


class Search(BaseModel):
    """The size of a search's two stages."""

    settings: int
    """The number of NCCL settings, including the current setting."""
    variables: dict[str, int]
    """The number of values for each variable and flag of the grid."""
    screenings: int
    """The most measurements of collectives, including those of the current setting."""
    screening_minutes: float
    """An estimate, from measurements on another machine."""
    screening_minutes_at_most: float
    servers: int
    """The most server starts."""
    servers_minutes_at_most: float
    """The minutes for the starts, without the measurements."""


def search_of(host: Host, plan: Plan) -> Search:
    """Return the most that a search on `host` would do; raises UsageError for a grid that must not be tried."""
    settings = collectives(host, plan.mode)
    screenings = measurements(len(settings), plan.confirm)
    servers = len(with_flags(host, settings[: plan.confirm + 1])) + 1
    return Search(
        settings=len(settings),
        variables={name: len(values) for name, values in grid_of(host).items()},
        screenings=screenings,
        screening_minutes=screenings * SCREENING_SECONDS / 60,
        screening_minutes_at_most=screenings * plan.deadline_seconds / 60,
        servers=servers,
        servers_minutes_at_most=servers * host.ready_timeout / 60,
    )


def measurements(settings: int, confirm: int) -> int:
    """Return the most measurements that a screening of `settings` makes, including those of the current setting."""
    total, left = 0, settings - 1
    for _ in range(MOST_ROUNDS):
        total += left + -(-left // BASELINE_EVERY)
        if left <= confirm:
            break
        left = max(confirm, int(left * KEPT_SHARE))
    return total
