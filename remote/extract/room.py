"""The room for dumps in a RAM disk, and the errors of an attempt without room.

Runs on the host inside the extractor's event loop; reads the file system's free space, writes nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from remote.work.failures import HeldUpError

CAUSE_BYTES = 1 << 16
"""With less than this free in the RAM disk, capture may have no room even for its error file."""
FULL_GRACE_SECONDS = 5.0
"""How long to wait for a dump after the answer if the RAM disk was full; with room, it takes milliseconds."""


class NoRoomError(HeldUpError):
    """The RAM disk was full when the dump was due; the record itself is not at fault."""


class VanishedError(NoRoomError):
    """The dump directory was removed while the dump was due; the record itself is not at fault."""


def room_bytes(directory: Path) -> int:
    """Return the free bytes in a dump directory's file system for this user; 0 if no further file can be created.

    For a missing directory the result is unlimited, because its user reports it as missing.
    """
    try:
        status = os.statvfs(directory)
    except OSError:
        return sys.maxsize
    full = status.f_files > 0 and status.f_favail == 0
    return 0 if full else status.f_bavail * status.f_frsize
