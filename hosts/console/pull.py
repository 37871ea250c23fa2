"""Output of `inv pull`: bytes, MB/s and time left for each host and in total; at the end, where everything is."""

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
from hosts.console.output import EXIT_FAILED, Output, error_document, exit_code
from hosts.fleet import Outcome
from hosts.units import size
from remote.shared.messages.transfer import HostTally
from remote.shared.supervised.threads import Thread
from remote.shared.transfer.engine import Tallies
from remote.shared.words import counted

REDRAW_SECONDS = 0.5
_SHOWN_FAILURES = 5
_NOBODY_HAS_THEM = (
    "Every host has done its share, so no host brings the missing records. They are quarantined, lie between two hosts"
    " after an interrupted command, or were freed into another destination. `inv status` names those of the first two"
    " kinds and what to type."
)


def watching(output: Output) -> Callable[[Tallies], Callable[[], None]]:
    """Return a watcher: bars on a terminal; when piped, a line for each waiting host; nothing with `--json`."""

    def watch(tallies: Tallies) -> Callable[[], None]:
        if output.as_json:
            return lambda: None
        shown = _Bars(output, tallies) if output.err.is_terminal else _Waits(output, tallies)
        over = threading.Event()
        thread = Thread(lambda: shown.run(over), "progress")

        def end() -> None:
            over.set()
            thread.join()

        return end

    return watch


class _Waits:
    """Prints once why a host brings nothing at the moment."""

    def __init__(self, output: Output, tallies: Tallies) -> None:
        self._output = output
        self._tallies = tallies
        self._said: set[tuple[str, str]] = set()

    def run(self, over: threading.Event) -> None:
        while not over.wait(REDRAW_SECONDS):
            self.look()

    def look(self) -> None:
        for name, tally in list(self._tallies.items()):
            if tally.waiting and (name, tally.waiting) not in self._said:
                self._said.add((name, tally.waiting))
                self._output.note(f"{name}: waiting {tally.waiting}")


class _Bars:
    def __init__(self, output: Output, tallies: Tallies) -> None:
        self._tallies = tallies
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

    def run(self, over: threading.Event) -> None:
        with self._display:
            while not over.wait(REDRAW_SECONDS):
                every = list(self._tallies.items())
                for name, tally in every:
                    self._draw(name, tally.done_bytes, tally.total_bytes, _records(tally))
                if len(every) > 1:
                    done = sum(tally.done_bytes for _, tally in every)
                    self._draw("all hosts", done, sum(tally.total_bytes for _, tally in every), "")

    def _draw(self, name: str, done: int, total: int, records: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._display.add_task(escape(name), total=None, records="")
        self._display.update(self._tasks[name], completed=done, total=total or None, records=records)


def _records(tally: HostTally) -> str:
    if tally.waiting:
        return f"waiting {escape(tally.waiting)}"
    return f"{tally.present + tally.delivered:,} of {max(tally.share_records, tally.offered):,} records"


def show_pulled(output: Output, pulled: Pulled) -> int:
    """Print a line for each host, then where the records are and which are missing; returns the exit code.

    The exit code is 1 if a record failed, or if records are missing that no host will bring. It is 2 if every host
    with a share refused the pull as wrong usage, because it holds another run.
    """
    for outcome in pulled.outcomes:
        if outcome.value is not None:
            _note_records(output, outcome.host.name, outcome.value)
    output.document(pulled_document(pulled))
    for outcome in pulled.outcomes:
        if outcome.error is not None:
            output.error(outcome.error, outcome.host.name)
        elif outcome.value is not None:
            output.line(f"{outcome.host.name}: {_host_line(outcome.value)}")
    output.line(_last_line(pulled))
    if pulled.nobody_brings_the_rest:
        output.note(_NOBODY_HAS_THEM)
    asked = [outcome for outcome in pulled.outcomes if outcome.value is None or outcome.value.has_share]
    return EXIT_FAILED if pulled.failed_records or pulled.nobody_brings_the_rest else exit_code(asked)


def _note_records(output: Output, host: str, tally: HostTally) -> None:
    for index in tally.damaged[:_SHOWN_FAILURES]:
        again = "; it is not replaced" if index in tally.failed else " and was pulled again"
        output.note(f"{host}: record {index} was damaged at the destination{again}.")
    for index, reason in list(tally.failed.items())[:_SHOWN_FAILURES]:
        output.note(f"{host}: record {index} was not delivered: {reason}.")


def _host_line(tally: HostTally) -> str:
    if not tally.has_share:
        return "no share in this run"
    if tally.looked_only:
        missing = tally.offered - tally.present
        return (
            f"{counted(tally.offered, 'record')} ready, {missing:,} of them ({size(tally.wanted_bytes)}) not pulled yet"
        )
    parts = [f"{counted(tally.delivered, 'record')} pulled ({size(tally.delivered_bytes)}"]
    rate = f", {tally.wire_bytes / tally.seconds / 1e6:,.0f} MB/s" if tally.seconds else ""
    parts[0] += f"{rate}, {tally.streams} streams)" if tally.streams > 1 else f"{rate})"
    if tally.present:
        parts.append(f"{tally.present:,} were here")
    if tally.damaged:
        parts.append(f"{len(tally.damaged):,} damaged here")
    if tally.kept_bytes:
        parts.append(f"{size(tally.kept_bytes)} kept from an interrupted pull")
    if tally.freed:
        parts.append(f"{tally.freed:,} freed there ({size(tally.freed_bytes)})")
    if tally.failed:
        parts.append(f"{len(tally.failed):,} NOT delivered")
    return ", ".join(parts)


def _last_line(pulled: Pulled) -> str:
    if pulled.manifest is None:
        missing = counted(pulled.missing_records, "record of the dataset is", "records of the dataset are")
        return f"{missing} not in {pulled.destination} yet."
    manifest = pulled.manifest
    here = f"{manifest.delivered:,} of {manifest.records:,} records ({size(manifest.delivered_bytes)}, verified)"
    if not pulled.missing:
        return f"{here} are in {pulled.destination}; nothing is missing."
    first = ", ".join(f"{start}" if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in pulled.missing[:3])
    more = ", …" if len(pulled.missing) > 3 else ""
    return f"{here} are in {pulled.destination}; {pulled.missing_records:,} are missing ({first}{more})."


def pulled_document(pulled: Pulled) -> dict[str, Any]:
    """Return the summary for `--json`."""
    return {
        "run": pulled.run,
        "destination": pulled.destination,
        "manifest": pulled.manifest.model_dump(mode="json") if pulled.manifest else None,
        "missing": {"records": pulled.missing_records, "ranges": pulled.missing},
        "nobody_brings_the_rest": pulled.nobody_brings_the_rest,
        "hosts": {outcome.host.name: _host_document(outcome) for outcome in pulled.outcomes},
    }


def _host_document(outcome: Outcome[HostTally]) -> dict[str, Any]:
    if outcome.value is None:
        assert outcome.error is not None
        return {"ok": False, "error": error_document(outcome.error)}
    tally = outcome.value
    found: dict[str, Any] = {
        "ok": not tally.failed,
        "share": tally.has_share,
        "offered": tally.offered,
        "present": tally.present,
        "wanted_bytes": tally.wanted_bytes,
        "status": tally.status,
    }
    if tally.has_share and not tally.looked_only:
        found |= {
            "delivered": tally.delivered,
            "delivered_bytes": tally.delivered_bytes,
            "wire_bytes": tally.wire_bytes,
            "kept_bytes": tally.kept_bytes,
            "streams": tally.streams,
            "seconds": round(tally.seconds, 3),
            "freed": tally.freed,
            "freed_bytes": tally.freed_bytes,
            "failed": {str(index): reason for index, reason in tally.failed.items()},
            "damaged": tally.damaged,
        }
    return found
