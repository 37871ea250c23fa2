"""What may hold a run back: a person's wish, a full disk, a newer assignment.

Runs on the host inside the extractor's event loop; reads files and the file system's free space, writes nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

from remote.extract.epochs import newest_epoch
from remote.extract.progress import wish
from remote.shared.messages.extract import Assignment
from remote.shared.paths import RunPaths

CAUSE_BYTES = 1 << 16
"""With less than this free in the RAM disk, capture may find no room to say why there is no dump."""
FULL_GRACE_SECONDS = 5.0
"""After an answer; a dump that found room in the RAM disk is there within milliseconds."""


class NoRoomError(Exception):
    """The RAM disk was full to the last byte when the dump was due: nothing is wrong with the record."""


class VanishedError(NoRoomError):
    """The dump directory was removed while the dump was due: nothing is wrong with the record."""


def room_bytes(directory: Path) -> int:
    """Free in a dump directory's file system for this user, 0 where no file more can be made.

    A directory that is not there lacks nothing: whoever uses it says so.
    """
    try:
        status = os.statvfs(directory)
    except OSError:
        return sys.maxsize
    full = status.f_files > 0 and status.f_favail == 0
    return 0 if full else status.f_bavail * status.f_frsize


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
