"""A workdir with logs, and the verb `logs` as a process of its own, spoken to as the laptop does."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remote.shared.messages.envelope import LINE, Failure, Item, Result
from remote.shared.messages.logs import LOG_EVENT, LogEvent, LogLines, LogNotice, LogPosition, LogsResult, LogStart

ROOT = Path(__file__).parents[3]
DEADLINE_SECONDS = 30.0


class LogsProcess:
    """One `python -m remote logs`; `lines` and `notices` grow as it speaks."""

    def __init__(self, workdir: Path, request: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "remote", "logs"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.lines: list[str] = []
        self.notices: list[str] = []
        self.started = False
        self.resume: dict[str, LogPosition] = {}
        """Where each source goes on after a cut, as the laptop keeps it."""
        self.result: LogsResult | None = None
        self.failure: Failure | None = None
        self._arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = {"verb": "logs", "workdir": str(workdir), "request": request, "tethered": True}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(call).encode() + b"\n")
        self.process.stdin.flush()
        threading.Thread(target=self._pump, daemon=True).start()

    @property
    def resumption(self) -> list[dict[str, Any]]:
        """`LogsRequest.resume` for the next call."""
        return [position.model_dump() for position in self.resume.values()]

    def until(self, true: Callable[[], bool]) -> None:
        """Take what arrives until `true()`; fails after the deadline or at the stream's end."""
        ends = time.monotonic() + DEADLINE_SECONDS
        while not true():
            raw = self._arrived.get(timeout=max(0.01, ends - time.monotonic()))
            assert raw is not None, f"ended early: {self.failure} after {self.notices}"
            self._take(raw)

    def finish(self) -> LogsProcess:
        """Read to the end of a call that does not follow."""
        while (raw := self._arrived.get(timeout=DEADLINE_SECONDS)) is not None:
            self._take(raw)
        self.process.wait(DEADLINE_SECONDS)
        return self

    def hang_up(self) -> int:
        """Close stdin, as a cut connection does, and return the exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(DEADLINE_SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            self._arrived.put(raw)
        self._arrived.put(None)

    def _take(self, raw: bytes) -> None:
        line = LINE.validate_json(raw)
        if isinstance(line, Item):
            self._event(LOG_EVENT.validate_python(line.value))
        elif isinstance(line, Result):
            self.result = LogsResult.model_validate(line.value)
        elif isinstance(line, Failure):
            self.failure = line

    def _event(self, event: LogEvent) -> None:
        if isinstance(event, LogStart):
            self.started = True
            self.resume = {position.source.name: position for position in event.positions}
        elif isinstance(event, LogLines):
            self.lines += event.lines
            self.resume[event.source.name] = event.end
        elif isinstance(event, LogNotice):
            self.notices.append(event.text)


class LogFolder:
    """Writes a server's logs as its supervisor would."""

    def __init__(self, workdir: Path, server: str = "main") -> None:
        self.server = server
        self.folder = workdir / "servers" / server / "logs"

    def path(self, start: int) -> Path:
        return self.folder / f"{self.server}_v{start}.log"

    def write(self, start: int, content: str | bytes) -> None:
        """Append to the log of that start and let `current` name it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        raw = content.encode() if isinstance(content, str) else content
        with self.path(start).open("ab") as log:
            log.write(raw)
        aside = self.folder / ".aside-current"
        aside.symlink_to(self.path(start).name)
        aside.replace(self.folder / "current")


@pytest.fixture(params=["plain", 'it\'s a "dir"; echo \N{SNOWMAN}'])
def hostile_workdir(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Workdirs with harmless and with hostile names."""
    folder = tmp_path / str(request.param)
    folder.mkdir()
    return folder


@pytest.fixture
def logs_of(tmp_path: Path) -> Iterator[Callable[..., LogsProcess]]:
    """Start the verb on `tmp_path` (or `workdir=`) with a request's fields; all are ended with the test."""
    started: list[LogsProcess] = []

    def start(workdir: Path = tmp_path, **request: Any) -> LogsProcess:
        started.append(LogsProcess(workdir, request))
        return started[-1]

    yield start
    for one in started:
        one.kill()
