"""`inv stop`: end Roost's own servers on every host, and name whatever else stands in their way."""

from __future__ import annotations

from collections.abc import Callable

from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from remote.messages.envelope import Progress
from remote.messages.server import StopRequest, StopResult

OVERHEAD_SECONDS = 300.0
"""Beside the grace period: SIGKILL, memory given back, a lock that another command holds for a moment."""


def stop(
    fleet: Fleet,
    *,
    names: list[str],
    force: bool = False,
    dry_run: bool = False,
    grace_seconds: float = 30.0,
    wait: bool = False,
    on_progress: Callable[[Host, Progress], None] | None = None,
) -> list[Outcome[StopResult]]:
    """Stop the servers called `names` (empty for all) on all hosts at once."""
    request = StopRequest(names=names, force=force, dry_run=dry_run, grace_seconds=grace_seconds, wait_for_lock=wait)
    return fleet.call("stop", request, StopResult, deadline=grace_seconds + OVERHEAD_SECONDS, on_progress=on_progress)
