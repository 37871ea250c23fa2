"""A running verb's output to its caller: progress lines and items."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import TextIO

from pydantic import BaseModel

from remote.shared.messages.envelope import Failure, Item, Progress

ERROR, REMEDY = "ERROR", "TO DO"
"""What an error's line, and the line that says what to do about it, begin with in a log."""


class Report:
    """Writes JSON lines, one whole line at a time, from any thread. Verbs print nothing themselves."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._lock = threading.Lock()

    def line(self, message: BaseModel) -> None:
        """Write one envelope line and flush it, so that the laptop sees it now."""
        with self._lock:
            self._stream.write(message.model_dump_json() + "\n")
            self._stream.flush()

    def progress(self, text: str, done: float | None = None, total: float | None = None, unit: str = "") -> None:
        """Send one sentence of progress, with the position in `unit` if it is known."""
        self.line(Progress(text=text, done=done, total=total, unit=unit))

    def item(self, value: BaseModel) -> None:
        """Stream one row of the answer."""
        self.line(Item(value=value.model_dump(mode="json")))


class LogReport(Report):
    """Writes what a detached verb says as a log for people: a time, then a sentence, as SGLang's own log does."""

    def line(self, message: BaseModel) -> None:
        """Write a sentence or an error; rows and results are for a caller, and here there is none."""
        if isinstance(message, Progress):
            self._say(message.text)
        elif isinstance(message, Failure):
            self._say(f"{ERROR} {message.kind}: {message.message}")
            if message.remedy:
                self._say(f"{REMEDY} {message.remedy}")
            for trace in str(message.details.get("traceback", "")).splitlines():
                self._say(f"    {trace}")

    def _say(self, text: str) -> None:
        with self._lock, suppress(OSError):  # a log on a full disk loses lines, and the work goes on
            self._stream.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n")
            self._stream.flush()


def last_failure(log: str) -> Failure | None:
    """The error with which a `LogReport`'s text ends; None if it ends otherwise."""
    remedy = ""
    for line in reversed(log.splitlines()):
        said = line.partition("] ")[2]
        if said.startswith(f"{REMEDY} "):
            remedy = said.removeprefix(f"{REMEDY} ")
        elif said.startswith(f"{ERROR} "):
            kind, _, message = said.removeprefix(f"{ERROR} ").partition(": ")
            return Failure(kind=kind, message=message, remedy=remedy)
        elif line.startswith("[") and not said.startswith(" "):
            return None
    return None
