"""Why a server ended, in one sentence, from its exit code and its log.

Runs on the host, called by the supervisor. Reads the log; changes nothing.
"""

from __future__ import annotations

import signal
from pathlib import Path

from remote.servers import logfile


def explain(log: Path, exit_code: int | None) -> str:
    """One sentence on why the server ended."""
    lines = last_lines(logfile.tail(log), 1)
    said = f" Its last words: {lines[0]}" if lines else ""
    return f"It ended {describe_exit(exit_code)}.{said}"


def relevant_lines(log: Path, count: int = 15) -> list[str]:
    """The log's last lines that tell something, for a person who reads no further."""
    return last_lines(logfile.tail(log), count)


def describe_exit(code: int | None) -> str:
    """`with exit code 1`, or the signal's name."""
    if code is None:
        return "and left no exit code"
    if code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"


def last_lines(text: str, count: int) -> list[str]:
    """The last lines that are not blank."""
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]
