"""`inv watch` where there is no screen to draw on: a line for the fleet, one for each host that changed, and events."""

from __future__ import annotations

import json
from collections.abc import Callable

from hosts.console.fleet import document, event_line, fleet_line, host_line
from hosts.console.output import Output
from hosts.series.view import FleetView, HostView

MOST_EVENTS = 50


class WatchLines:
    """Prints looks at the fleet; what has not changed since the last look is not repeated."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._said: dict[str, str] = {}
        self._events: set[tuple[str, float, str]] = set()
        self._fleet = ""

    def show(self, view: FleetView) -> None:
        """Print one look; with `--json`, as one document in one line."""
        if self._output.as_json:
            self._output.out.file.write(json.dumps(document(view)) + "\n")
            self._output.flush()
            return
        for name, event in view.events(MOST_EVENTS):
            key = (name, event.at, event.text)
            if key not in self._events:
                self._events.add(key)
                self._output.line(event_line(name, event))
        for host in view.hosts:
            self._changed(host.name, _steady(host), lambda host=host: host_line(host, view.at))  # type: ignore[misc]
        self._changed("", f"{view.done} {view.rate:.0f}", lambda: fleet_line(view))
        self._output.flush()

    def _changed(self, name: str, what: str, line: Callable[[], str]) -> None:
        if self._said.get(name) != what:
            self._said[name] = what
            self._output.line(line())


def _steady(host: HostView) -> str:
    """What makes a host's line worth another one: not its age."""
    return f"{host.word} {host.done} {host.trouble}"
