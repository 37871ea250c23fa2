"""What `clean` prints: everything on the hosts' disks with its size, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence

from hosts.console.output import Output
from hosts.console.text import duration, size
from hosts.fleet import Outcome
from remote.shared.messages.clean import CleanResult


def clean_line(result: CleanResult, dry_run: bool) -> str:
    """`would free 3.2 TiB (2 runs, 1 payload), keeps 410.0 GiB`."""
    going = [item for item in result.stored if not item.kept]
    staying = sum(item.size_bytes for item in result.stored if item.kept)
    freed = sum(item.size_bytes for item in going)
    verb = "would free" if dry_run else "freed"
    kinds = {kind: sum(item.kind == kind for item in going) for kind in ("run", "payload", "log", "unfinished")}
    counted = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in kinds.items() if count)
    return f"{verb} {size(freed)} ({counted or 'nothing'}), keeps {size(staying)}"


def show_stored(output: Output, outcomes: Sequence[Outcome[CleanResult]]) -> None:
    """Everything that was looked at, largest first."""
    rows = [
        (
            outcome.host.name,
            item.kind,
            item.name,
            size(item.size_bytes),
            duration(item.age_seconds),
            f"kept: {item.kept}" if item.kept else "removed",
        )
        for outcome in outcomes
        for item in (outcome.value.stored if outcome.value else [])
    ]
    if rows:
        output.table(("host", "kind", "name", "size", "unchanged for", ""), rows)
