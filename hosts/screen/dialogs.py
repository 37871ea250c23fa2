"""The dialogs of `inv watch`: one host in detail with the end of its log, and the question before a change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from hosts.console.fleet import event_line, host_line
from hosts.console.text import printable
from hosts.errors import RoostError
from hosts.money import said
from hosts.series.view import FleetView, HostView
from hosts.units import duration, size

if TYPE_CHECKING:
    from hosts.screen.app import Actions

TAIL_SECONDS = 5.0


class Question(ModalScreen[bool]):
    """A question for yes or no. Any other answer than yes changes nothing."""

    CSS = """
    Question { align: center middle; }
    #question { width: auto; max-width: 90%; height: auto; padding: 1 2; border: thick $warning; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Yield the question."""
        yield Static(f"{self._text}  [y/n]", id="question", markup=False)

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class Detail(ModalScreen[None]):
    """One host in detail: its runs, servers, GPUs and events, and the last lines of its log."""

    CSS = """
    Detail { align: center middle; }
    #frame { width: 96%; height: 92%; border: round $primary; background: $surface; }
    #facts { height: auto; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #log { height: 1fr; border-top: solid $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "close", "Back", priority=True)]

    def __init__(self, host: str, source: Callable[[], FleetView], actions: Actions) -> None:
        super().__init__()
        self._host, self._source, self._actions = host, source, actions

    def compose(self) -> ComposeResult:
        """Yield the facts and, below them, the log."""
        with Vertical(id="frame"):
            yield Static(id="facts", markup=False)
            with VerticalScroll(id="log"):
                yield Static("Reading the log …", id="tail", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Show the facts, and read the log meanwhile."""
        self._draw()
        self.set_interval(1.0, self._draw)
        self._read()
        self.set_interval(TAIL_SECONDS, self._read)

    def action_close(self) -> None:
        """Go back to the fleet."""
        self.dismiss(None)

    def _draw(self) -> None:
        host = next((one for one in self._source().hosts if one.name == self._host), None)
        if host is not None:
            self.query_one("#facts", Static).update("\n".join(facts(host, time.time())))

    def _read(self) -> None:
        self.run_worker(self._read_log, thread=True, exclusive=True)

    def _read_log(self) -> None:
        """Read the log in a thread, because the host may answer late."""
        try:
            lines = self._actions.tail(self._host)
        except RoostError as error:
            lines = [str(error)]
        text = Text("\n".join(printable(line) for line in lines) or "The log is empty.")
        self.app.call_from_thread(self._show, text)

    def _show(self, text: Text) -> None:
        if self.is_mounted:
            self.query_one("#tail", Static).update(text)
            self.query_one("#log", VerticalScroll).scroll_end(animate=False)


def facts(host: HostView, now: float) -> Iterator[str]:
    """Return a host in a few lines."""
    yield host_line(host, now)
    if money := said(host.bill):
        yield money
    if host.glance is None:
        return
    reading = host.glance.reading
    for run in reading.runs:
        waits = [f"{duration(seconds)} for {cause}" for cause, seconds in run.state.waited.items() if seconds > 1]
        yield printable(
            f"run {run.run}: epoch {run.state.epoch}, {run.state.in_flight if run.alive else 0} in flight, "
            f"{run.state.counts.quarantined} quarantined, {run.state.retries} retries"
            + (f"; waited {', '.join(waits)}" if waits else "")
        )
    for server in reading.servers:
        queue = "" if server.queued is None else f", {server.queued:.0f} queued, {server.running or 0:.0f} running"
        rate = server.prefill_tokens_per_second
        prefill = "" if rate is None else f", {rate:,.0f} tokens/s of prefill"
        yield printable(f"server {server.name}: {server.mode} {server.status}{queue}{prefill} {server.cause}".rstrip())
    for gpu in reading.gpus:
        told = (("%", gpu.use_percent), (" W", gpu.watts), (" °C", gpu.celsius), (" MHz", gpu.megahertz))
        words = [f"{value:.0f}{unit}" for unit, value in told if value is not None]
        memory = "" if gpu.memory_bytes is None else f", {size(gpu.memory_bytes)} of {size(gpu.total_bytes or 0)}"
        yield f"GPU {gpu.index}: {' '.join(words)}{memory}"
    if reading.gpu_problem:
        yield printable(reading.gpu_problem)
    if host.glance.problem:
        yield printable(host.glance.problem)
    for event in host.glance.events[-5:]:
        yield event_line(host.name, event)
