"""`--limit-rate`: bytes a second for all streams of all hosts together."""

from __future__ import annotations

import threading
import time


class RateLimit:
    """A token bucket that holds a quarter of a second; None means no limit."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._owed_until = time.monotonic()

    def spend(self, size: int, stop: threading.Event) -> None:
        """Account for `size` received bytes, and wait until they were due (or until `stop`)."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._owed_until = max(self._owed_until, now - 0.25) + size / self._rate
            wait = self._owed_until - now
        if wait > 0:
            stop.wait(wait)
