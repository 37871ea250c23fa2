"""How thorough a search is, and what it is for."""

from __future__ import annotations

from dataclasses import dataclass

from hosts.tune.score import Goal


@dataclass(frozen=True)
class Plan:
    """One search on one host."""

    mode: str
    goal: Goal
    confirm: int = 3
    """NCCL settings beside the current one that get real servers, each with every combination of the grid's flags."""
    repetitions: int = 5
    """Of a confirming measurement."""
    deadline_seconds: float = 60.0
    """Of one setting's screening; a setting that takes longer hangs."""
    fresh: bool = False
    """Forget what an unfinished search of the same kind has found."""
