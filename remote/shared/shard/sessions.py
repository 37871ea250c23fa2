"""Which request ids are really ours: the sessions that registered in the dump directory. Shared by both ends.

A request id is only a name, and whoever reaches the server can make one up. The extractor (and whoever sends a canary)
registers its session's nonce as a file in the dump directory, which the server's user alone can write to; capture
writes nothing for any other nonce. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from remote.shared.files import FILE_MODE

PREFIX = ".session-"


def register(directory: Path, nonce: str) -> None:
    """Have the requests of this session captured; to be done before the first one is sent. Raises OSError."""
    os.close(
        os.open(directory / f"{PREFIX}{nonce}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    )


def withdraw(directory: Path, nonce: str) -> None:
    """Undo `register`, if the directory is still there and can be written."""
    with contextlib.suppress(OSError):
        (directory / f"{PREFIX}{nonce}").unlink()


class Sessions:
    """The sessions of one dump directory as capture sees them. Any thread may ask."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: set[str] = set()

    def __contains__(self, nonce: str) -> bool:
        """Whether the server's own user registered `nonce`; once seen, a session counts until the server ends."""
        if nonce in self._known:
            return True
        try:
            status = (self._directory / f"{PREFIX}{nonce}").lstat()
        except OSError:
            return False
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return False
        self._known.add(nonce)
        return True
