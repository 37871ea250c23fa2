"""The room for dumps in a RAM disk, and the errors of an attempt without room.

Runs on the host inside the extractor's event loop; reads the file system's free space, writes nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from remote.work.failures import HeldUpError

CAUSE_BYTES = 1 << 16
"""Free bytes in the RAM disk below which capture may not even have room for its error file."""
FULL_GRACE_SECONDS = 5.0
"""Seconds to wait for a dump after the answer if the RAM disk was full. With room, a dump takes milliseconds."""


class NoRoomError(HeldUpError):
    """The RAM disk was full when the dump was due; the record itself is not at fault."""


class VanishedError(NoRoomError):
    """The dump directory was removed while the dump was due; the record itself is not at fault."""


def room_bytes(directory: Path) -> int:
    """Return this user's free bytes in a dump directory's file system; 0 if no further file can be created.

    For a missing directory the result is unlimited, because the caller reports the missing directory.
    """
    try:
        status = os.statvfs(directory)
    except OSError:
        return sys.maxsize
    full = status.f_files > 0 and status.f_favail == 0
    return 0 if full else status.f_bavail * status.f_frsize
