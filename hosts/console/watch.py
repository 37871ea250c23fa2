"""Prints `inv watch` as lines instead of a screen: the fleet, each host that changed, and events."""

from __future__ import annotations

import json
from collections.abc import Callable

from hosts.console.fleet import document, event_line, fleet_line, host_line
from hosts.console.output import Output
from hosts.series.view import FleetView, HostView

MOST_EVENTS = 50


class WatchLines:
    """Prints views of the fleet, without lines that have not changed since the last view."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._said: dict[str, str] = {}
        self._events: set[tuple[str, float, str]] = set()
        self._fleet = ""

    def show(self, view: FleetView) -> None:
        """Print one view; with `--json`, as one document in one line."""
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
    """Return the parts of a host's view whose change causes a new line: everything except its age."""
    return f"{host.word} {host.done} {host.trouble}"
