"""`inv clean`: free the hosts' disks of old runs, payloads and logs, sizes first."""

from __future__ import annotations

from collections.abc import Callable

from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from remote.shared.messages.clean import CleanRequest, CleanResult
from remote.shared.messages.envelope import Progress

DAY_SECONDS = 86_400.0
PATIENCE_SECONDS = 3600.0
"""Removing millions of shards from a network file system takes its time."""


def clean(
    fleet: Fleet,
    *,
    names: list[str],
    older_than_days: float,
    force: bool = False,
    dry_run: bool = False,
    wait: bool = False,
    on_progress: Callable[[Host, Progress], None] | None = None,
) -> list[Outcome[CleanResult]]:
    """Remove what is named, or else what is older; never what is used, and unpulled records by name and force only."""
    request = CleanRequest(
        names=names,
        older_than_seconds=older_than_days * DAY_SECONDS,
        force=force,
        dry_run=dry_run,
        wait_for_lock=wait,
    )
    return fleet.call("clean", request, CleanResult, deadline=PATIENCE_SECONDS, on_progress=on_progress)
