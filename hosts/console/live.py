"""Progress while hosts work: one live line a host on a terminal, plain lines when piped, nothing with `--json`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from hosts.console.output import Output
from hosts.console.text import printable
from hosts.inventory.model import Host
from remote.messages import envelope


class LiveLines:
    """Takes `remote` progress lines of any host from any thread."""

    def __init__(self, output: Output, display: Progress | None) -> None:
        self._output = output
        self._display = display
        self._tasks: dict[str, TaskID] = {}
        self._last: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, host: Host, line: envelope.Progress) -> None:
        text = printable(line.text)
        with self._lock:
            if self._display is None:
                self._plain(host.name, text)
            else:
                self._draw(self._display, host.name, text, line)

    def _plain(self, name: str, text: str) -> None:
        if self._last.get(name) != text:
            self._last[name] = text
            self._output.note(f"{name}: {text}")

    def _draw(self, display: Progress, name: str, text: str, line: envelope.Progress) -> None:
        if name not in self._tasks:
            self._tasks[name] = display.add_task(escape(name), total=None, text="")
        display.update(self._tasks[name], completed=line.done or 0, total=line.total, text=escape(text))


@contextmanager
def live_lines(output: Output) -> Iterator[LiveLines]:
    """Lines that redraw themselves on a terminal until the block ends."""
    if output.as_json or not output.err.is_terminal:
        yield LiveLines(output, None)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=output.err, transient=True) as display:
        yield LiveLines(output, display)
