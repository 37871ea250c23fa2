"""Stand-in servers as processes, for tests on either side: started once, configured for each test."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hosts.practice.ports import free_port
from remote.shared.processes import MARK
from tests.remote.extract.standin import Config

PATIENCE_SECONDS = 60.0


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll until `condition` holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE_SECONDS:g} s"
        time.sleep(0.01)


@dataclass
class StandInProcess:
    """One stand-in server as a process; its configuration can change, its port cannot."""

    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    config: Config = field(default_factory=lambda: Config("", "", 0))

    def start(self) -> None:
        """Start the process; it serves once `configure` was called."""
        script = Path(__file__).with_name("standin.py")
        environ = {**os.environ, MARK: f"stand-in#{secrets.token_hex(8)}"}
        argv = [sys.executable, str(script), str(self.port)]
        self.process = subprocess.Popen(argv, env=environ, start_new_session=True)

    def configure(self, config: Config) -> None:
        """Be this server: returns once its state file says ready."""
        self.config = config
        until(self._configured, "a stand-in that listens")

    def kill(self) -> None:
        """End it as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def restart(self) -> None:
        """Come back as the next life of the same server."""
        self.kill()
        self.start()
        self.configure(replace(self.config, start=self.config.start + 1))

    def seen(self) -> dict[str, int]:
        """Requests this life has had, a record index."""
        return dict(self._get("/seen")["seen"])

    def asked(self) -> list[dict[str, Any]]:
        """What this life was asked to answer."""
        return list(self._get("/seen")["asked"])

    def aborted(self) -> list[str]:
        """Request ids that were taken back."""
        return list(self._get("/seen")["aborted"])

    def set_faults(self, faults: dict[str, list[str]]) -> None:
        """Other faults from now on, in this life and later ones."""
        self.config.faults = faults
        self._post("/faults", faults)

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def _post(self, path: str, body: object) -> None:
        url = f"http://127.0.0.1:{self.port}{path}"
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=10).close()

    def _configured(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the stand-in ended"
        try:
            self._post("/configure", asdict(self.config))
        except OSError:
            return False
        return True


class Pool:
    """Stand-in processes that serve one test after another: starting one takes a second."""

    def __init__(self) -> None:
        self._idle: list[StandInProcess] = []
        self._busy: list[StandInProcess] = []

    def take(self) -> StandInProcess:
        """A process that nobody else uses."""
        server = self._idle.pop() if self._idle else StandInProcess()
        if server.process is None:
            server.start()
        self._busy.append(server)
        return server

    def give_back(self) -> None:
        """After a test: those that still live serve the next one."""
        for server in self._busy:
            if server.process is not None and server.process.poll() is None:
                self._idle.append(server)
            else:
                server.kill()
        self._busy.clear()

    def close(self) -> None:
        """End them all."""
        for server in [*self._idle, *self._busy]:
            server.kill()
