"""Unmodified SGLang on CPU: the flags that it needs, and a server that is started without Roost.

Laptop's side. `inventory.py` uses the flags, and tests use `CpuServer` (also inside `.engine`). A server writes only
its log, and `stop` ends its whole process group.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from hosts.errors import HostError
from hosts.practice.ports import ADDRESS, free_port

CONTEXT_LENGTH = 4096
MAX_RUNNING_REQUESTS = 8
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    # Two threads on a tiny model's matrices spend half their time waiting for each other.
    "OMP_NUM_THREADS": "1",
}
FLAGS: Mapping[str, str | int | bool] = {
    "device": "cpu",
    # `auto` would turn a float32 checkpoint into float16.
    "dtype": "float32",
    "attention-backend": "torch_native",
    "disable-overlap-schedule": True,
    "max-total-tokens": 16384,
    "chunked-prefill-size": 2048,
    "log-level": "info",
    # Otherwise an idle scheduler keeps a core busy.
    "sleep-on-idle": True,
}
READY_SECONDS = 240.0
END_SECONDS = 20.0


class CpuServer:
    """A running SGLang server; use it as a context manager. `flags` come after the defaults and win over them."""

    def __init__(
        self,
        python: Path,
        model: Path,
        log: Path,
        *,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.log = log
        self.command = [str(python), "-m", "sglang.launch_server", *_arguments(model, self.port), *flags]
        self._env = {**os.environ, **ENVIRONMENT, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}"

    @property
    def pid(self) -> int:
        """The pid of the leader of the server's session and process group."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server and return when it has generated a token. Raises HostError with the end of the log if it
        does not.
        """
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self._generates():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise HostError(f"SGLang on CPU did not become ready; its log ends: {self._last_lines()}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End the server's process group, with SIGKILL if SIGTERM does not suffice."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(END_SECONDS)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()
        self._process = None

    def post(self, path: str, body: Mapping[str, Any], timeout: float = 60.0) -> Any:
        """POST JSON and return the answer's JSON."""
        request = urllib.request.Request(  # noqa: S310
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            return json.load(answer)

    def __enter__(self) -> CpuServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _generates(self) -> bool:
        body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1}}
        try:
            return bool(self.post("/generate", body, timeout=10.0))
        except (OSError, urllib.error.HTTPError, json.JSONDecodeError):
            return False

    def _last_lines(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").strip().splitlines()[-5:])


def _arguments(model: Path, port: int) -> list[str]:
    own: dict[str, str | int | bool] = {
        "model-path": str(model),
        "host": ADDRESS,
        "port": port,
        "context-length": CONTEXT_LENGTH,
        "max-running-requests": MAX_RUNNING_REQUESTS,
        "skip-server-warmup": True,
        "disable-cuda-graph": True,
        **FLAGS,
    }
    return [word for name, value in own.items() for word in _words(name, value)]


def _words(name: str, value: str | int | bool) -> list[str]:
    return [f"--{name}"] if value is True else [f"--{name}", str(value)]
