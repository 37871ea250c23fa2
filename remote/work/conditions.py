"""The conditions that may hold a run back: a person's request, a full disk, a newer assignment.

Runs on the host inside the event loop of detached work; reads files and the file system's free space, writes nothing.
"""

from __future__ import annotations

import os
from typing import Literal

from remote.shared.messages.extract import Assignment
from remote.shared.paths import RunPaths
from remote.work.epochs import newest_epoch
from remote.work.progress import wish


class Conditions:
    """The conditions, which the dispatcher checks several times a second."""

    def __init__(self, paths: RunPaths, assignment: Assignment) -> None:
        self._paths = paths
        self._assignment = assignment

    def wish(self) -> Literal["pause", "resume", "stop"]:
        """Return a person's latest request to the run."""
        return wish(self._paths)

    def superseded_by(self) -> int | None:
        """Return a newer epoch that this host was given, or None."""
        newest = newest_epoch(self._paths)
        return newest if newest is not None and newest > self._assignment.epoch else None

    def free_bytes(self) -> int:
        """Return the free bytes on the shards' file system for this user."""
        status = os.statvfs(self._paths.shards)
        return status.f_bavail * status.f_frsize

    def lacking_bytes(self, needed: int) -> int:
        """Return how many bytes the disk lacks for `needed` bytes and the reserved free space; 0 if it lacks none."""
        return max(0, needed + self._assignment.min_free_bytes - self.free_bytes())
