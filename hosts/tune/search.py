"""The size of a search on one host: settings, measurements, server starts and minutes. Pure."""

from __future__ import annotations

from pydantic import BaseModel

from hosts.inventory.model import Host
from hosts.tune.grid import collectives, grid_of, with_flags
from hosts.tune.plan import Plan
from hosts.tune.screening import measurements

SCREENING_SECONDS = 8.0
"""Seconds for one setting's collectives on two H200s (`benchmarks/results/collectives-2026-11-29.json`)."""


class Search(BaseModel):
    """The two stages of a search."""

    settings: int
    """NCCL settings, the current one included."""
    variables: dict[str, int]
    """Number of values for each variable and flag of the grid."""
    screenings: int
    """Most measurements of collectives, including those of the current setting."""
    screening_minutes: float
    """An estimate, from measurements on another machine."""
    screening_minutes_at_most: float
    servers: int
    """Most server starts."""
    servers_minutes_at_most: float
    """For the starts alone, without the measurements."""


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
