"""Progress while hosts work: a live line for each host on a terminal, plain lines when piped, nothing with `--json`.

An unreachable host is reported at once, while other hosts are still working.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from hosts.console.output import Output
from hosts.console.text import printable
from hosts.errors import AuthenticationError, HostKeyError, HostUnreachableError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.units import duration, size
from remote.shared.messages import envelope
from remote.shared.supervised.threads import Thread

QUIET_SECONDS = 10.0
"""When piped: after this time without a line, hosts that have not answered are named; then after twice the time."""
LONGEST_QUIET_SECONDS = 120.0
ASKED = "waiting for its answer"


class DeadHosts:
    """A fleet's watcher that reports unreachable hosts at once."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def begun(self, host: Host) -> None:
        """Do nothing: only the end of a call can be worth a line."""

    def ended(self, outcome: Outcome[Any]) -> None:
        """Print why a host cannot be reached; the task itself prints every other error."""
        if isinstance(outcome.error, HostUnreachableError | HostKeyError | AuthenticationError):
            self._output.error(outcome.error, outcome.host.name)


class LiveLines(DeadHosts):
    """Shows the progress lines of all hosts, from any thread, and watches a fleet."""

    def __init__(self, output: Output, display: Progress | None, failure: Callable[[Any], str]) -> None:
        super().__init__(output)
        self._display = display
        self._failure = failure
        self._tasks: dict[str, TaskID] = {}
        self._last: dict[str, str] = {}
        self._waiting: dict[str, float] = {}
        self._said_at = time.monotonic()
        self._quiet_seconds = QUIET_SECONDS
        self._lock = threading.Lock()

    def __call__(self, host: Host, line: envelope.Progress) -> None:
        with self._lock:
            if self._display is None:
                self._plain(host.name, line)
            else:
                self._draw(self._display, host.name, line)

    def begun(self, host: Host) -> None:
        """Show that the host was asked."""
        with self._lock:
            self._waiting[host.name] = time.monotonic()
            if self._display is not None:
                if host.name in self._tasks:  # rich cannot reset the total of a finished bar
                    self._display.remove_task(self._tasks.pop(host.name))
                self._draw(self._display, host.name, envelope.Progress(text=ASKED))

    def ended(self, outcome: Outcome[Any]) -> None:
        """Show that this host has finished, while others still work."""
        with self._lock:
            self._waiting.pop(outcome.host.name, None)
            why = self._failure(outcome.value) if outcome.value is not None else ""
            if self._display is not None:
                text = why or ("done" if outcome.error is None else "failed")
                self._draw(self._display, outcome.host.name, envelope.Progress(text=text, done=1, total=1))
            elif why:
                self._note(f"{outcome.host.name}: {why}")
        super().ended(outcome)

    def remind(self) -> None:
        """Name the hosts that have not answered, if nothing was printed for a while."""
        with self._lock:
            now = time.monotonic()
            if self._waiting and now - self._said_at >= self._quiet_seconds:
                asked = min(self._waiting.values())
                self._note(f"waiting for {', '.join(self._waiting)} ({duration(now - asked)})")
                self._quiet_seconds = min(2 * self._quiet_seconds, LONGEST_QUIET_SECONDS)

    def _note(self, text: str) -> None:
        self._said_at = time.monotonic()
        self._output.note(text)

    def _plain(self, name: str, line: envelope.Progress) -> None:
        if self._last.get(name) != line.text:
            self._last[name] = line.text
            self._quiet_seconds = QUIET_SECONDS
            self._note(f"{name}: {_with_count(line)}")

    def _draw(self, display: Progress, name: str, line: envelope.Progress) -> None:
        if name not in self._tasks:
            self._tasks[name] = display.add_task(escape(name), total=None, text="")
        text = escape(printable(_with_count(line)))
        display.update(self._tasks[name], completed=line.done or 0, total=line.total, text=text)


@contextmanager
def live_lines(output: Output, fleet: Fleet, failure: Callable[[Any], str] = lambda _: "") -> Iterator[LiveLines]:
    """Show live lines until the block ends; a host's line appears when `fleet` asks the host.

    `failure` returns why a host's result is a failure; this is printed at once, while others still work.
    """
    if output.as_json or not output.err.is_terminal:
        with _watched(fleet, LiveLines(output, None, failure)) as lines, _reminded(lines):
            yield lines
        return
    columns = (
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with (
        Progress(*columns, console=output.err, transient=True) as display,
        _watched(fleet, LiveLines(output, display, failure)) as lines,
    ):
        yield lines


@contextmanager
def _watched(fleet: Fleet, lines: LiveLines) -> Iterator[LiveLines]:
    before, fleet.watcher = fleet.watcher, lines
    try:
        yield lines
    finally:
        fleet.watcher = before


@contextmanager
def _reminded(lines: LiveLines) -> Iterator[None]:
    over = threading.Event()

    def remind() -> None:
        while not over.wait(QUIET_SECONDS / 10):
            lines.remind()

    reminder = Thread(remind, "the live lines' reminder")
    try:
        yield
    finally:
        over.set()
        reminder.join()


def _with_count(line: envelope.Progress) -> str:
    """Return `tokenizing, 1.2 GiB of 3.4 GiB`."""
    if line.total is None or line.done is None or not line.unit:
        return line.text
    if line.unit in ("B", "bytes"):
        return f"{line.text}, {size(line.done)} of {size(line.total)}"
    return f"{line.text}, {line.done:,.0f} of {line.total:,.0f} {line.unit}"
