"""What a search on one host would do: how many settings, measurements, server starts, and minutes. Pure."""

from __future__ import annotations

from pydantic import BaseModel

from hosts.inventory.model import Host
from hosts.tune.grid import collectives, grid_of, with_flags
from hosts.tune.plan import Plan
from hosts.tune.screening import measurements

SCREENING_SECONDS = 8.0
"""One setting's collectives on two H200s (`benchmarks/results/collectives-2026-11-29.json`)."""


class Search(BaseModel):
    """The two stages of a search."""

    settings: int
    """NCCL settings, the current one included."""
    variables: dict[str, int]
    """Values that the grid has for each variable and flag."""
    screenings: int
    """Measurements of collectives at most, those of the current setting included."""
    screening_minutes: float
    """An estimate from another machine."""
    screening_minutes_at_most: float
    servers: int
    """Server starts at most."""
    servers_minutes_at_most: float
    """Of the starts alone; each is followed by its measurement."""


def search_of(host: Host, plan: Plan) -> Search:
    """Count what a search on `host` would do at most; raises UsageError for a grid that must not be tried."""
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
