"""What may hold a run back: a person's wish, a full disk, a newer assignment.

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
    """Looked at several times a second by the dispatcher."""

    def __init__(self, paths: RunPaths, assignment: Assignment) -> None:
        self._paths = paths
        self._assignment = assignment

    def wish(self) -> Literal["pause", "resume", "stop"]:
        """The newest wish of a person."""
        return wish(self._paths)

    def superseded_by(self) -> int | None:
        """A newer epoch that this host was given, or None."""
        newest = newest_epoch(self._paths)
        return newest if newest is not None and newest > self._assignment.epoch else None

    def free_bytes(self) -> int:
        """Free on the shards' file system for this user."""
        status = os.statvfs(self._paths.shards)
        return status.f_bavail * status.f_frsize

    def lacking_bytes(self, needed: int) -> int:
        """How much is missing for `needed` bytes more above the free space that must stay; 0 if it fits."""
        return max(0, needed + self._assignment.min_free_bytes - self.free_bytes())
