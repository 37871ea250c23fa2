"""The room for dumps in a RAM disk, and what a try raises that finds none.

Runs on the host inside the extractor's event loop; reads the file system's free space, writes nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from remote.work.failures import HeldUpError

CAUSE_BYTES = 1 << 16
"""With less than this free in the RAM disk, capture may find no room to say why there is no dump."""
FULL_GRACE_SECONDS = 5.0
"""After an answer; a dump that found room in the RAM disk is there within milliseconds."""


class NoRoomError(HeldUpError):
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
