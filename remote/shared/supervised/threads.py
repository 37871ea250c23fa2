"""Threads with an owner. All are daemons: a hanging thread never keeps its process alive.

Every verb imports this module; pools of threads are in `pools`, whose imports take a short call milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from remote.shared.errors import HostError
from remote.shared.supervised import ENDING_SECONDS


class DeadlineError(HostError, TimeoutError):
    """Work did not end within the time that its owner gave it."""

    kind = "deadline"


def log_end(error: BaseException) -> None:
    """Log an unexpected end; an `on_end` for owners that can do nothing else (capture, inside SGLang)."""
    import logging

    logging.getLogger(__name__).error("%s ended unexpectedly", threading.current_thread().name, exc_info=error)


class Thread:
    """One thread; `on_end` gets its exception at once, and `join` raises it."""

    def __init__(
        self, work: Callable[[], None], name: str, on_end: Callable[[BaseException], None] | None = None
    ) -> None:
        self.error: BaseException | None = None
        self.name = name
        self._work, self._on_end = work, on_end
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float = ENDING_SECONDS) -> None:
        """Wait for the thread's end; raises the thread's exception, or DeadlineError if the thread goes on."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise DeadlineError(f"{self.name} did not end within {seconds:g} s.")
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error
            if self._on_end is not None:
                self._on_end(error)
