"""Reads how busy a server is, from SGLang's metrics if it exposes them, else from the batch lines of its log.

Runs on the host. Costs the scheduler nothing: SGLang serves `/metrics` from counters, and the log is a file.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from remote.servers.lifecycle import key
from remote.shared.errors import HostError
from remote.shared.files import open_own
from remote.shared.messages.server import ServerState
from remote.shared.paths import ServerPaths

METRICS_SECONDS = 2.0
"""Deadline in seconds, because a frozen server must not delay the recorder."""
MOST_METRICS = 4 << 20
STALE_SECONDS = 30.0
"""Seconds without a batch line after which the queue counts as unknown."""
TAIL_BYTES = 1 << 17
PROBE_ROWS = 32
"""A prefill of at most this many tokens may be a probe of Roost, and does not count as use of the server."""

_PREFILL = re.compile(r"Prefill batch.*?#new-token: (\d+)")
_RUNNING = re.compile(r"#running-req: (\d+)")
_QUEUED = re.compile(r"#queue-req: (\d+)")
_METRIC = re.compile(r"^sglang:(num_queue_reqs|num_running_reqs|prompt_tokens_total)(?:\{[^}]*\})? (\S+)", re.MULTILINE)


@dataclass
class Load:
    """SGLang's last numbers; None for a number that is not known."""

    queued: float | None = None
    running: float | None = None
    prefill_tokens_per_second: float | None = None


class ServerGauge:
    """Reads one server repeatedly."""

    def __init__(self, paths: ServerPaths) -> None:
        self._paths = paths
        self._log = ""
        self._offset = 0
        self._looked_at = 0.0
        self._said_at = 0.0
        self._prompt_tokens: float | None = None
        self._load = Load()
        self.used_at = time.monotonic()
        """When the server last worked on more than a probe, by the monotonic clock."""

    def look(self, state: ServerState) -> Load:
        """Return the present load, from the log's lines since the last call."""
        now = time.monotonic()
        seconds = now - self._looked_at if self._looked_at else 0.0
        self._looked_at = now
        if any(argument.startswith("--enable-metrics") for argument in state.command):
            with suppress(OSError, ValueError, HostError):
                return self._by_metrics(state, seconds)
        return self._by_log(state, seconds, now)

    def _by_log(self, state: ServerState, seconds: float, now: float) -> Load:
        tokens = 0
        for line in self._new_lines(Path(state.log)):
            tokens += self._take(line, now)
        rate = tokens / seconds if seconds else None
        if now - self._said_at > STALE_SECONDS:
            return Load(prefill_tokens_per_second=rate)
        return Load(self._load.queued, self._load.running, rate)

    def _take(self, line: str, now: float) -> int:
        """Note the numbers of a batch line; return the tokens that the batch prefills."""
        queued, running = _QUEUED.search(line), _RUNNING.search(line)
        if queued is None or running is None:
            return 0
        self._load, self._said_at = Load(float(queued[1]), float(running[1])), now
        prefill = _PREFILL.search(line)
        tokens = int(prefill[1]) if prefill else 0
        if prefill is None or tokens > PROBE_ROWS:
            self.used_at = now
        return tokens

    def _new_lines(self, path: Path) -> list[str]:
        """Return the complete lines since the last call; [] at the first call."""
        try:
            with os.fdopen(open_own(path), "rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if str(path) != self._log:
                    self._log, self._offset = str(path), size
                self._offset = max(min(self._offset, size), size - TAIL_BYTES)
                stream.seek(self._offset)
                content = stream.read(TAIL_BYTES)
        except OSError:
            return []
        end = content.rfind(b"\n") + 1
        self._offset += end
        return content[:end].decode("utf-8", "replace").splitlines()

    def _by_metrics(self, state: ServerState, seconds: float) -> Load:
        """Return the load from the metrics; raises OSError or ValueError if the server does not answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{state.port}/metrics", headers=key.headers(self._paths))
        with urllib.request.urlopen(request, timeout=METRICS_SECONDS) as answer:  # noqa: S310
            found = of_metrics(answer.read(MOST_METRICS).decode("utf-8", "replace"))
        tokens, before = found.get("prompt_tokens_total"), self._prompt_tokens
        self._prompt_tokens = tokens
        gained = None if tokens is None or before is None else max(0.0, tokens - before)
        if (gained is not None and gained > PROBE_ROWS) or found.get("num_running_reqs"):
            self.used_at = time.monotonic()
        rate = gained / seconds if gained is not None and seconds else None
        return Load(found.get("num_queue_reqs"), found.get("num_running_reqs"), rate)


def of_metrics(text: str) -> dict[str, float]:
    """Return the load from Prometheus' text, summed over labels; raises ValueError if a value is no number."""
    found: dict[str, float] = {}
    for name, value in _METRIC.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    return found
