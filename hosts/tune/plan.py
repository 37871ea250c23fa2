"""The options of a search."""

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
    """Repetitions of a confirming measurement."""
    deadline_seconds: float = 60.0
    """Seconds for one setting's screening; a setting that takes longer counts as hung."""
    fresh: bool = False
    """Discard the record of an unfinished search for the same host, mode and goal."""
