"""Enforces the dump directory's high-water mark: each rank waits while its share is full. Inside SGLang.

Several ranks write into one directory. Each rank has an equal share of the mark and counts only its own files, so that
together they never exceed the mark and need not communicate. The collector makes room by deleting dumps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from remote.capture.ring import Waits
from remote.shared.errors import RecordError

_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Unfinished:
    """The names of unfinished dumps."""

    written: set[str]
    """Dumps that have begun and not ended; their files still have temporary names."""
    incomplete: set[str]
    """Those among them that wait for rows of a later forward pass."""


class Space:
    """Counts this process's dumps, from their first row until the collector takes them. Used by one thread."""

    def __init__(self, directory: Path, high_water_bytes: int, writers: int) -> None:
        self.share = high_water_bytes // writers
        self.mark = high_water_bytes
        self.waits = Waits()
        self._directory = directory
        self._held: dict[str, int] = {}
        self._bytes = 0

    def reserve(self, name: str, size: int, unfinished: Callable[[], Unfinished]) -> None:
        """Reserve room for a dump `name` of `size` bytes, after waiting for the collector if there is none.

        Raises RecordError if waiting cannot help: the dump is larger than the share, or the share is full of dumps that
        cannot be finished before the forward pass continues.
        """
        if size > self.share:
            raise RecordError(
                f"The record's dump takes {size} bytes, but this rank's share of the dump directory's high-water mark"
                f" ({self.mark} bytes) is {self.share}."
            )
        if self._bytes + size > self.share:
            self._recount(unfinished().written)
        if self._bytes + size > self.share:
            self._wait(size, unfinished)
        self._held[name] = size
        self._bytes += size

    def _wait(self, size: int, unfinished: Callable[[], Unfinished]) -> None:
        since = time.monotonic()
        try:
            while self._bytes + size > self.share:
                if not self._held.keys() - unfinished().incomplete:
                    raise RecordError(
                        f"The dump directory's high-water mark ({self.mark} bytes) is reached by records whose last"
                        " rows can only come after this record's."
                    )
                time.sleep(_POLL_SECONDS)
                self._recount(unfinished().written)
        finally:
            self.waits.add(since)

    def _recount(self, written: set[str]) -> None:
        """Forget dumps that have gone and are not being written."""
        try:
            present = {entry.name for entry in os.scandir(self._directory)}
        except OSError:
            present = set()
        for name in self._held.keys() - present - written:
            self._bytes -= self._held.pop(name)
