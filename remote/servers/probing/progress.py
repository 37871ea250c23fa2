"""Tells how far a starting server has come, from SGLang's own log lines as they appear.

Runs on the host, called by `serve` while it waits. Reads the log; changes nothing.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from remote.shared.files import open_own


@dataclass(frozen=True)
class Step:
    """One step of a start as a phrase, and how far along it is, if the log tells."""

    text: str
    done: float | None = None
    total: float | None = None
    unit: str = ""


_SHARDS = re.compile(r"shards:\s+(\d+)% Completed \| (\d+)/(\d+)")
_STEPS: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"server_args="), "arguments accepted"),
    (re.compile(r"Init torch distributed begin"), "ranks meet"),
    (re.compile(r"Load weight begin\. avail mem=([\d.]+) GB"), "loading weights ({0} GB free)"),
    (re.compile(r"Load weight end\..*?mem usage=([\d.]+) GB"), "weights loaded ({0} GB)"),
    (re.compile(r"KV Cache is allocated\..*?#tokens: (\d+)"), "KV cache allocated ({0} tokens)"),
    (re.compile(r"Capture (?:\w+ )?cuda graph.*begin", re.IGNORECASE), "capturing CUDA graphs"),
    (re.compile(r"Application startup complete"), "HTTP server up, waiting for a first generation"),
]


class LogProgress:
    """Reads one server's log from where it stopped last time, or from the beginning if a restart opened a new log."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._offset = 0
        self._last: Step | None = None

    def poll(self, path: Path) -> list[Step]:
        """Return the steps since the last call, in order; repeated steps are left out."""
        if path != self._path:
            self._path, self._offset = path, 0
        steps: list[Step] = []
        for line in self._new_lines(path):
            step = parse(line)
            if step is not None and step != self._last:
                steps.append(step)
                self._last = step
        return steps

    def _new_lines(self, path: Path) -> list[str]:
        """Return the new whole lines; a carriage return ends a line too, because tqdm redraws its bar with it."""
        try:
            with os.fdopen(open_own(path), "rb") as stream:
                stream.seek(self._offset)
                content = stream.read()
        except OSError:
            return []
        end = max(content.rfind(b"\n"), content.rfind(b"\r")) + 1
        self._offset += end
        return content[:end].decode("utf-8", "replace").replace("\r", "\n").splitlines()


def parse(line: str) -> Step | None:
    """Return the step that a line of SGLang's log tells, or None."""
    shards = _SHARDS.search(line)
    if shards:
        tens = int(shards.group(1)) // 10 * 10  # without a terminal, every new text becomes a line
        return Step(f"loading weights, {tens} %", float(shards.group(2)), float(shards.group(3)), "files")
    for pattern, text in _STEPS:
        found = pattern.search(line)
        if found:
            return Step(text.format(*found.groups()))
    return None
