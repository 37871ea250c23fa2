"""Output of `inv logs`: each line with its host's name in front, coloured on a terminal, plain when piped."""

from __future__ import annotations

import json
import sys
from typing import TextIO

from hosts.console.text import printable
from hosts.errors import RoostError
from hosts.inventory.model import Host
from remote.shared.messages.logs import LogItem, LogLines, LogSource

COLOURS = ("36", "33", "32", "35", "34", "31")
"""Colours (SGR codes) for the hosts, in turn."""


def shown(line: str) -> str:
    """Return a line as a terminal finally shows it: the last state of a progress bar, with visible escapes."""
    return printable(line.rstrip("\r").rpartition("\r")[2])


class LogPrinter:
    """Prints log lines straight to the stream, because rich is too slow for 100,000 lines."""

    def __init__(self, hosts: list[Host], as_json: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._as_json = as_json
        self._coloured = self._stream.isatty()
        self._width = max((len(host.name) for host in hosts), default=0)
        self._colour = {host.name: COLOURS[number % len(COLOURS)] for number, host in enumerate(hosts)}
        self._sources: dict[str, set[LogSource]] = {}

    def item(self, host: Host, item: LogItem) -> None:
        """Print a batch of whole lines, or a notice, and flush."""
        if self._as_json:
            self._stream.writelines(self._documents(host, item))
        elif isinstance(item, LogLines):
            prefix = self._prefix(host, item.source)
            self._stream.writelines(f"{prefix}{shown(line)}\n" for line in item.lines)
        else:
            self._stream.write(f"{self._prefix(host, item.source)}{self._dim(f'-- {printable(item.text)}')}\n")
        self._stream.flush()

    def lost(self, host: Host, error: RoostError, pause: float) -> None:
        """Print on stderr that a connection broke; the next connection continues at the same line."""
        text = printable(f"{host.name}: {error.message} Trying again in {pause:.0f} s.")
        print(text, file=sys.stderr, flush=True)

    def failed(self, host: Host, error: RoostError) -> None:
        """Print, with `--json`, an object for a host whose log could not be read; the task prints the text."""
        if self._as_json:
            told = {"host": host.name, "error": {"kind": error.kind, "message": error.message, "remedy": error.remedy}}
            self._stream.write(json.dumps(told) + "\n")
            self._stream.flush()

    def _prefix(self, host: Host, source: LogSource) -> str:
        """Return `gpu1 | `, or `gpu1/a | ` if a host has several logs."""
        seen = self._sources.setdefault(host.name, set())
        if len(seen) < 2:
            seen.add(source)
        name = f"{host.name}/{printable(source.task or source.name)}" if len(seen) > 1 else host.name
        text = f"{name:<{self._width}} | "
        return f"\x1b[{self._colour[host.name]}m{text}\x1b[0m" if self._coloured else text

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._coloured else text

    def _documents(self, host: Host, item: LogItem) -> list[str]:
        """Return one JSON object for each line."""
        base = {"host": host.name, "source": item.source.name, "kind": item.source.kind}
        if isinstance(item, LogLines):
            return [json.dumps({**base, "file": item.file, "line": line}) + "\n" for line in item.lines]
        return [json.dumps({**base, "notice": item.text}) + "\n"]
