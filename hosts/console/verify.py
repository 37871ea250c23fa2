"""Output of `verify`, `verify --repair` and `export`: a table of faults, and one line with the verdict."""

from __future__ import annotations

from hosts.commands.repair import Queued
from hosts.console.output import Output
from hosts.units import duration, size
from remote.shared import ranges as sets
from remote.shared.messages.export import ExportResult
from remote.shared.messages.verify import Fault, VerifyResult
from remote.shared.words import counted

SHOWN_FAULTS = 50
"""The most rows of the table; further faults are counted, and `--json` has all of them."""


def show_faults(output: Output, faults: list[tuple[str, Fault]]) -> None:
    """Print one row for each fault: host, record and what is wrong."""
    rows = [
        (place, "" if fault.index is None else str(fault.index), fault.kind, fault.file, fault.message)
        for place, fault in faults[:SHOWN_FAULTS]
    ]
    if rows:
        output.table(("where", "record", "fault", "file", "what"), rows)
    if len(faults) > SHOWN_FAULTS:
        output.line(f"… and {len(faults) - SHOWN_FAULTS:,} more (all of them with --json)")


def verdict(result: VerifyResult) -> str:
    """Return a line on what was checked, what is wrong and what is missing."""
    checked = f"{result.records:,} of {result.expected:,} records, {size(result.size_bytes)}"
    parts = [f"{count} {kind}" for kind, count in sorted(result.by_kind.items())]
    if result.holes:
        parts.append(f"{sets.count(result.holes):,} not here yet")
    if result.quarantined:
        parts.append(f"{result.quarantined:,} quarantined")
    if result.delivered:
        parts.append(f"{result.delivered:,} delivered and freed")
    found = ", ".join(parts) if parts else "all right"
    if not result.has_dataset:
        found += "; the dataset is not in this folder, so token ids were not compared with it"
    if result.without_sums:
        found += f"; {result.without_sums:,} from an older Roost have no row sums to compare"
    if result.parity:
        worst = max((error for one in result.parity for error in one.errors), default=0.0)
        found += f"; {len(result.parity)} compared with transformers, at most {worst:.1e} off"
    return f"{checked} checked in {duration(result.wall_seconds)}: {found}"


def show_queued(output: Output, queued: list[Queued], *, dry_run: bool) -> None:
    """Print one line for each host: how many records it extracts again, and which."""
    for one in queued:
        first = ", ".join(str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in one.records[:5])
        which = f"{counted(sets.count(one.records), 'record')} ({first}{', …' if len(one.records) > 5 else ''})"
        if one.error is not None:
            output.error(one.error, one.host)
        else:
            output.note(f"{one.host}: {which} {'would be' if dry_run else 'are'} queued again.")
    if queued and not dry_run:
        output.note("Next: inv extract makes them again, inv pull brings them.")


def show_exported(output: Output, result: ExportResult) -> None:
    """Print where the export is, its format, and how much was written."""
    card = result.card
    output.line(
        f"{result.out}: {counted(card.records, 'record')} for {card.format}, final state {card.final_state}-norm"
    )
    if card.errors:
        most = max(card.errors, key=lambda slot: slot.mean)
        output.line(
            f"float8 states are off by at most {most.mean:.2%} on average (boundary {most.boundary}), "
            f"{max(slot.worst for slot in card.errors):.2%} in the worst token"
        )
    output.line(
        f"{result.linked:,} linked, {size(result.written_bytes)} written in {duration(result.wall_seconds)}; "
        f"load {result.load}"
    )
    if card.missing:
        output.note(f"{card.missing:,} records of the dataset are missing in this export.")
