"""The screen of `inv watch`: a line on the fleet, a row for each host, and recent events. Keys act on the chosen host.

The screen shows the state in `hosts/series` and never waits for a host. Closing the screen changes nothing on hosts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import ClassVar, Protocol

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.widgets import DataTable, Footer, Static

from hosts.console.fleet import columns, event_line, fleet_line, row
from hosts.errors import RoostError
from hosts.screen.dialogs import Detail, Question
from hosts.series.view import FleetView, HostView

DRAW_SECONDS = 1.0
LEAST_COLUMNS, LEAST_ROWS = 60, 12
ORDERS: tuple[tuple[str, Callable[[HostView], tuple[object, ...]]], ...] = (
    ("name", lambda host: (host.name,)),
    ("slowest first", lambda host: (host.rate, host.name)),
    ("most left first", lambda host: (host.done - host.assigned, host.name)),
    ("troubles first", lambda host: (not host.is_lost, not host.trouble, host.name)),
)
_STYLES = {"lost": "bold red", "failed": "bold red", "paused": "yellow", "waiting": "yellow", "complete": "green"}


class Actions(Protocol):
    """The actions behind the keys. Each action returns a sentence about its result."""

    def steer(self, host: str, action: str) -> str:
        """Pause or resume the host's run; raises RoostError."""

    def tail(self, host: str) -> list[str]:
        """Return the last lines of the log of the host's run, or of its servers; raises RoostError."""


class WatchApp(App[None]):
    """The whole screen."""

    CSS = """
    Screen { layers: base; }
    #fleet { height: auto; max-height: 3; padding: 0 1; text-style: bold; }
    #hosts { height: 1fr; min-height: 4; }
    #hosts:nocolor > .datatable--cursor { text-style: reverse; }
    #events { height: auto; max-height: 9; padding: 0 1; border-top: solid $primary;
      text-wrap: nowrap; text-overflow: ellipsis; }
    #small { display: none; padding: 1; }
    .tiny #fleet, .tiny #hosts, .tiny #events, .tiny Footer { display: none; }
    .tiny #small { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d,enter", "detail", "Detail"),
        Binding("p", "steer", "Pause/resume"),
        Binding("s", "sort", "Sort"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False
    TITLE = "inv watch"

    def __init__(self, source: Callable[[], FleetView], actions: Actions) -> None:
        # With NO_COLOR, Textual removes the terminal's own colours; colours of a theme would become greys.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self._source, self._actions = source, actions
        self._order = 0
        self._names: list[str] = []
        self.fault: BaseException | None = None

    def compose(self) -> ComposeResult:
        """Yield the parts from top to bottom."""
        with Vertical():
            yield Static(id="fleet", markup=False)
            yield DataTable(id="hosts", cursor_type="row", zebra_stripes=True)
            yield Static(id="events", markup=False)
            yield Static(id="small", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Draw now, and then every second."""
        self.query_one(DataTable).focus()
        self.draw()
        self.set_interval(DRAW_SECONDS, self.draw)

    def on_resize(self, event: Resize) -> None:
        """Draw again; if the terminal is too small, show only a message that says so."""
        tiny = event.size.width < LEAST_COLUMNS or event.size.height < LEAST_ROWS
        self.screen_stack[0].set_class(tiny, "tiny")
        self._small().update(
            f"This terminal has {event.size.width} columns and {event.size.height} rows, but this view needs "
            f"{LEAST_COLUMNS} and {LEAST_ROWS}. Enlarge the terminal, or type inv watch | cat for lines. q leaves."
        )
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Show the present state."""
        try:
            view = self._source()
        except BaseException as error:
            self.fault = error
            self.exit()
            return
        base = self.screen_stack[0]
        base.query_one("#fleet", Static).update(fleet_line(view))
        self._draw_hosts(base.query_one("#hosts", DataTable), view)
        rows = max(2, min(8, self.size.height - len(view.hosts) - 7))
        lines = [event_line(host, event) for host, event in view.events(rows)]
        base.query_one("#events", Static).update("\n".join(lines) or "Nothing has happened yet.")

    def _draw_hosts(self, table: DataTable[Text], view: FleetView) -> None:
        width = self.size.width
        ordered = sorted(view.hosts, key=ORDERS[self._order][1])
        wanted = columns(width)
        chosen = self.chosen
        if [column.width for column in table.columns.values()] != [column.width for column in wanted]:
            table.clear(columns=True)
            for column in wanted:
                table.add_column(column.title, key=column.title, width=column.width)
            self._names = []
        names = [host.name for host in ordered]
        if names != self._names:
            table.clear()
            for host in ordered:
                table.add_row(*(Text("") for _ in wanted), key=host.name)
            self._names = names
            if chosen in names:
                table.move_cursor(row=names.index(chosen))
        for host in ordered:
            for column, cell in zip(wanted, row(host, view.at, width), strict=True):
                style = _STYLES.get(host.word.split(",")[0], "") if column.title == "state" else ""
                table.update_cell(host.name, column.title, Text(cell, style, no_wrap=True, overflow="ellipsis"))

    @property
    def chosen(self) -> str:
        """Return the host under the cursor; "" if there is none."""
        at = self.screen_stack[0].query_one("#hosts", DataTable).cursor_row
        return self._names[at] if 0 <= at < len(self._names) else ""

    def action_sort(self) -> None:
        """Sort the hosts by the next criterion."""
        self._order = (self._order + 1) % len(ORDERS)
        self.notify(f"Hosts by: {ORDERS[self._order][0]}")
        self.draw()

    def action_detail(self) -> None:
        """Show the chosen host with the end of its log."""
        if self.screen is self.screen_stack[0] and (name := self.chosen):
            self.push_screen(Detail(name, self._source, self._actions))

    def on_data_table_row_selected(self) -> None:
        """Show the host's details after Enter, or after a click on the chosen row."""
        self.action_detail()

    def action_steer(self) -> None:
        """Ask for confirmation, then pause or resume the chosen host's run."""
        host = next((one for one in self._source().hosts if one.name == self.chosen), None)
        working = [run for run in host.runs if run.alive] if host is not None and not host.is_lost else []
        if host is None or not working:
            self.notify("No run is working on this host.", severity="warning")
            return
        action = "resume" if working[0].wished == "pause" else "pause"
        runs = ", ".join(run.run for run in working)

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(lambda: self._steer(host.name, action), thread=True)

        self.push_screen(Question(f"{action.capitalize()} {runs} on {host.name}?"), answered)

    def _steer(self, host: str, action: str) -> None:
        """Pause or resume in a thread, because the host may answer late."""
        began = time.monotonic()
        try:
            said = self._actions.steer(host, action)
        except RoostError as error:
            self.call_from_thread(self.notify, f"{host}: {error}", severity="error", timeout=15)
            return
        self.call_from_thread(self.notify, f"{host}: {said} ({time.monotonic() - began:.1f} s)")

    def _small(self) -> Static:
        return self.screen_stack[0].query_one("#small", Static)
