"""The dump directory's high-water mark: who may put how much into it, and when one has to wait. Inside SGLang.

Several ranks write into one directory. Each has an equal share of the mark and counts its own files alone, so that
together they never pass it and need not talk to each other. The collector makes room by deleting dumps.
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
    """Names of dumps that are not whole yet."""

    written: set[str]
    """Begun, and not ended: their files are still aside."""
    incomplete: set[str]
    """Of these, the ones that wait for a later forward pass's rows."""


class Space:
    """Bytes of this process's dumps, from their first row until the collector took them. One thread uses it."""

    def __init__(self, directory: Path, high_water_bytes: int, writers: int) -> None:
        self.share = high_water_bytes // writers
        self.mark = high_water_bytes
        self.waits = Waits()
        self._directory = directory
        self._held: dict[str, int] = {}
        self._bytes = 0

    def reserve(self, name: str, size: int, unfinished: Callable[[], Unfinished]) -> None:
        """Make room for a dump `name` of `size` bytes, waiting for the collector where there is none.

        Raises RecordError where no wait could help: the dump is larger than the share, or only dumps are in the way
        that cannot become whole before the forward pass goes on.
        """
        if size > self.share:
            raise RecordError(
                f"The record's dump takes {size} bytes, and this rank's share of the dump directory's high-water mark"
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
                        " rows cannot come before this one is through."
                    )
                time.sleep(_POLL_SECONDS)
                self._recount(unfinished().written)
        finally:
            self.waits.add(since)

    def _recount(self, written: set[str]) -> None:
        """Forget dumps that are no longer there and are not still being written."""
        try:
            present = {entry.name for entry in os.scandir(self._directory)}
        except OSError:
            present = set()
        for name in self._held.keys() - present - written:
            self._bytes -= self._held.pop(name)
