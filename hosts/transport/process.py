"""A program running on a host, as byte pipes: what SSH channels and local subprocesses have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

STDERR_KEPT_BYTES = 64 * 1024


class Process(ABC):
    """One program with its three streams; `read` returns b"" at the end of stdout."""

    def __init__(self) -> None:
        self._stderr: deque[bytes] = deque()
        self._stderr_bytes = 0

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send all of `data` to stdin; raises ConnectionError if the other end is gone."""

    @abstractmethod
    def close_stdin(self) -> None:
        """Close stdin. The program reads to the end of its input and may go on running."""

    @abstractmethod
    def read(self, size: int, timeout: float | None) -> bytes:
        """Return up to `size` bytes of stdout; raises TimeoutError after `timeout` seconds without a byte."""

    @abstractmethod
    def wait(self, timeout: float) -> int:
        """Return the exit status; raises TimeoutError after `timeout` seconds."""

    @abstractmethod
    def close(self) -> None:
        """Close the streams; a tethered verb ends by itself when its stdin closes."""

    def stderr_tail(self) -> str:
        """Return the last 64 KiB of stderr, for error messages."""
        return b"".join(self._stderr).decode("utf-8", "replace").strip()

    def _keep_stderr(self, chunk: bytes) -> None:
        self._stderr.append(chunk)
        self._stderr_bytes += len(chunk)
        while self._stderr_bytes > STDERR_KEPT_BYTES and len(self._stderr) > 1:
            self._stderr_bytes -= len(self._stderr.popleft())
