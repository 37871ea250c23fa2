"""The laptop as a host: the same bootstrap and the same verbs in a subprocess, a real second backend."""

from __future__ import annotations

import os
import select
import subprocess
from contextlib import suppress

from hosts.errors import PythonError
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from hosts.transport.process import Process
from remote.shared.supervised.threads import DeadlineError, Thread

WRITE_SECONDS = 45.0


class LocalBackend(Backend):
    """Runs verbs under the inventory's `python` for `local`, without SSH."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)

    def open(self, argv: list[str]) -> Process:
        try:
            return LocalProcess(argv)
        except OSError as error:
            raise PythonError(
                f"{argv[0]} could not be started here: {error.strerror}.",
                remedy="Set `python` for this host.",
            ) from error

    def close(self) -> None:
        """Do nothing: no connection is held open between calls."""


class LocalProcess(Process):
    """A subprocess in its own session: Ctrl-C ends it only through its stdin, not by the terminal's signal too."""

    def __init__(self, argv: list[str]) -> None:
        super().__init__()
        pipe = subprocess.PIPE
        argv = [os.path.expanduser(argv[0]), *argv[1:]]  # noqa: PTH111
        self._popen = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        self._drain = Thread(self._drain_stderr, "stderr")

    def write(self, data: bytes) -> None:
        assert self._popen.stdin is not None
        descriptor, left = self._popen.stdin.fileno(), memoryview(data)
        while left:
            if not _ready(descriptor, select.POLLOUT, WRITE_SECONDS):
                raise TimeoutError(f"the program read nothing for {WRITE_SECONDS:.0f} s")
            left = left[os.write(descriptor, left[: select.PIPE_BUF]) :]  # never blocks on a ready pipe

    def close_stdin(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def read(self, size: int, timeout: float | None) -> bytes:
        assert self._popen.stdout is not None
        descriptor = self._popen.stdout.fileno()
        if not _ready(descriptor, select.POLLIN, timeout):
            raise TimeoutError
        return os.read(descriptor, size)

    def wait(self, timeout: float) -> int:
        try:
            status = self._popen.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error
        with suppress(DeadlineError):
            self._drain.join(1.0)
        return status

    def close(self) -> None:
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue

    def end(self) -> None:
        """Terminate the program if it has not ended."""
        self._popen.terminate()

    def _drain_stderr(self) -> None:
        stream = self._popen.stderr
        assert stream is not None
        while chunk := os.read(stream.fileno(), 65536):
            self._keep_stderr(chunk)
        stream.close()


def _ready(descriptor: int, event: int, seconds: float | None) -> bool:
    """Return whether the descriptor is ready within `seconds`; `poll`, because `select` fails above descriptor 1023."""
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))
