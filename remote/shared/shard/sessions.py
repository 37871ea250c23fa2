"""Which request ids are really Roost's: sessions are registered in the dump directory. Standard library only.

A request id is only a name, which any client of the server can make up. The extractor, and every sender of a canary,
therefore registers its nonce as a file in the dump directory, where only the server's user can write. Capture writes
nothing for any other nonce.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from remote.shared.files import FILE_MODE

PREFIX = ".session-"


def register(directory: Path, nonce: str) -> None:
    """Register a session before its first request, so that its requests are captured. Raises OSError."""
    os.close(
        os.open(directory / f"{PREFIX}{nonce}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    )


def withdraw(directory: Path, nonce: str) -> None:
    """Undo `register`. Errors of the disk are ignored."""
    with contextlib.suppress(OSError):
        (directory / f"{PREFIX}{nonce}").unlink()


class Sessions:
    """The sessions of one dump directory as capture sees them. Safe for any thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: set[str] = set()

    def __contains__(self, nonce: str) -> bool:
        """Return whether the server's own user registered `nonce`; a session that was seen counts from then on."""
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
