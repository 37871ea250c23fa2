"""How a verb speaks to whoever called it: progress lines and items while it runs."""

from __future__ import annotations

import sys
import threading
from typing import TextIO

from pydantic import BaseModel

from remote.shared.messages.envelope import Item, Progress


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
        """Say one sentence, and how far along in `unit` where that is known."""
        self.line(Progress(text=text, done=done, total=total, unit=unit))

    def item(self, value: BaseModel) -> None:
        """Stream one row of the answer."""
        self.line(Item(value=value.model_dump(mode="json")))
