"""Makes Ctrl-C end `inv` at any moment with exit code 130 and no traceback. Laptop's side.

While a task runs, Ctrl-C raises KeyboardInterrupt, so that everything is closed on the way out. Before and after a task
there is nothing to close: imports take a second, and Invoke would turn the exception into a silent exit code 1.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

EXIT_INTERRUPTED = 130


def leave_at_once() -> None:
    """Make Ctrl-C end the process at once from now on, unless the process ignores it, as a background job does."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _on_signal)


@contextmanager
def raised() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt in the main thread within the block."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield
        return
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        signal.signal(signal.SIGINT, before)


before_leaving: list[Callable[[], None]] = []
"""Functions that `leave` calls first, because the process ends without leaving the calling blocks."""


def leave() -> NoReturn:
    """End the process with exit code 130, without waiting for threads that wait for a host."""
    for last in before_leaving:
        last()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(EXIT_INTERRUPTED)


def _on_signal(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)
