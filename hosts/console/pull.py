"""What a person sees of a pull: bytes, MB/s and time left, a line a host and one in all; then where everything is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from hosts.commands.pull import Pulled
from hosts.console.output import Output, error_document
from hosts.fleet import Outcome
from hosts.pull.pull import HostTally, Tallies
from hosts.units import size

REDRAW_SECONDS = 0.5
_SHOWN_FAILURES = 5


def watching(output: Output) -> Callable[[Tallies], Callable[[], None]]:
    """Bars on a terminal; nothing when piped or with `--json`."""

    def watch(tallies: Tallies) -> Callable[[], None]:
        if output.as_json or not output.err.is_terminal:
            return lambda: None
        bars = _Bars(output, tallies)
        bars.start()
        return bars.end

    return watch


class _Bars(threading.Thread):
    def __init__(self, output: Output, tallies: Tallies) -> None:
        super().__init__(name="bars", daemon=True)
        self._tallies = tallies
        self._over = threading.Event()
        self._display = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[records]}"),
            console=output.err,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def run(self) -> None:
        with self._display:
            while not self._over.wait(REDRAW_SECONDS):
                for name, tally in self._tallies.items():
                    self._draw(name, tally.arrived_bytes, tally.wanted_bytes, _records(tally))
                if len(self._tallies) > 1:
                    every = self._tallies.values()
                    arrived = sum(tally.arrived_bytes for tally in every)
                    self._draw("all hosts", arrived, sum(tally.wanted_bytes for tally in every), "")

    def end(self) -> None:
        self._over.set()
        self.join()

    def _draw(self, name: str, done: int, total: int, records: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._display.add_task(escape(name), total=None, records="")
        self._display.update(self._tasks[name], completed=done, total=total or None, records=records)


def _records(tally: HostTally) -> str:
    delivered = tally.report.delivered if tally.report else 0
    return f"{tally.present + delivered:,} of {tally.offered:,} records"


def show_pulled(output: Output, pulled: Pulled) -> int:
    """A line a host, then what is where and what is missing; returns the exit code."""
    for outcome in pulled.outcomes:
        if outcome.value is not None and outcome.value.report is not None:
            for index, reason in list(outcome.value.report.failed.items())[:_SHOWN_FAILURES]:
                output.note(f"{outcome.host.name}: record {index} was not delivered: {reason}.")
    output.document(pulled_document(pulled))
    code = 0
    for outcome in pulled.outcomes:
        if outcome.error is not None:
            output.error(outcome.error, outcome.host.name)
            code = 1
        elif outcome.value is not None:
            output.line(f"{outcome.host.name}: {_host_line(outcome.value)}")
    output.line(_last_line(pulled))
    return 1 if code or pulled.failed_records else 0


def _host_line(tally: HostTally) -> str:
    if not tally.has_share:
        return "no share in this run"
    if tally.report is None:
        missing = tally.offered - tally.present
        return f"{tally.offered:,} records ready, {missing:,} of them ({size(tally.wanted_bytes)}) not here yet"
    report = tally.report
    parts = [f"{report.delivered:,} records pulled ({size(report.delivered_bytes)}"]
    rate = f", {report.tally.wire_bytes / report.seconds / 1e6:,.0f} MB/s" if report.seconds else ""
    parts[0] += f"{rate}, {report.streams} streams)" if report.streams > 1 else f"{rate})"
    if tally.present:
        parts.append(f"{tally.present:,} were here")
    if report.tally.kept_bytes:
        parts.append(f"{size(report.tally.kept_bytes)} kept from an interrupted pull")
    if tally.freed:
        parts.append(f"{tally.freed:,} freed there ({size(tally.freed_bytes)})")
    if report.failed:
        parts.append(f"{len(report.failed):,} NOT delivered")
    return ", ".join(parts)


def _last_line(pulled: Pulled) -> str:
    if pulled.manifest is None:
        return f"{pulled.missing_records:,} records of the dataset are not in {pulled.destination} yet."
    manifest = pulled.manifest
    here = f"{manifest.delivered:,} of {manifest.records:,} records ({size(manifest.delivered_bytes)}, verified)"
    if not pulled.missing:
        return f"{here} are in {pulled.destination}; nothing is missing."
    first = ", ".join(f"{start}" if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in pulled.missing[:3])
    more = ", …" if len(pulled.missing) > 3 else ""
    return f"{here} are in {pulled.destination}; {pulled.missing_records:,} are missing ({first}{more})."


def pulled_document(pulled: Pulled) -> dict[str, Any]:
    """The `--json` summary."""
    return {
        "run": pulled.run,
        "destination": pulled.destination,
        "manifest": pulled.manifest.model_dump(mode="json") if pulled.manifest else None,
        "missing": {"records": pulled.missing_records, "ranges": pulled.missing},
        "hosts": {outcome.host.name: _host_document(outcome) for outcome in pulled.outcomes},
    }


def _host_document(outcome: Outcome[HostTally]) -> dict[str, Any]:
    if outcome.value is None:
        assert outcome.error is not None
        return {"ok": False, "error": error_document(outcome.error)}
    tally, report = outcome.value, outcome.value.report
    found: dict[str, Any] = {
        "ok": not (report and report.failed),
        "share": tally.has_share,
        "offered": tally.offered,
        "present": tally.present,
        "wanted_bytes": tally.wanted_bytes,
        "status": tally.status,
    }
    if report is not None:
        found |= {
            "delivered": report.delivered,
            "delivered_bytes": report.delivered_bytes,
            "wire_bytes": report.tally.wire_bytes,
            "kept_bytes": report.tally.kept_bytes,
            "streams": report.streams,
            "seconds": round(report.seconds, 3),
            "freed": tally.freed,
            "freed_bytes": tally.freed_bytes,
            "failed": {str(index): reason for index, reason in report.failed.items()},
        }
    return found
