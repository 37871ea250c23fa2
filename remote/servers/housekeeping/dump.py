"""The dump directory in RAM that hidden states pass through: claimed by a marker, emptied only if it carries one.

Runs on the host, called by `serve` (claim), the supervisor (sweep) and `stop` (empty). Touches nothing outside that
directory, and nothing in one that is a link, belongs to another user, or lacks Roost's marker.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from remote.shared.errors import HostError
from remote.shared.files import ASIDE, DIRECTORY_MODE, is_own, make_directory, read_own, write_whole
from remote.shared.paths import DUMP_MARKER
from remote.shared.shard.sessions import PREFIX


def claim(path: Path, mark: str) -> None:
    """Create the directory, or take over an empty or marked one, and write `mark` into its marker.

    Raises HostError where it holds files that are not Roost's, or is not a directory of this user's own.
    """
    make_directory(path)
    _check_own(path)
    path.chmod(DIRECTORY_MODE)  # an older one of this user's may be open to others, and states lie in it
    if not is_marked(path) and any(path.iterdir()):
        raise HostError(
            f"The dump directory {path} holds files and no {DUMP_MARKER} marker, so they are not Roost's.",
            remedy="Give another `dump_dir`, or move those files away.",
        )
    write_whole(path / DUMP_MARKER, mark.encode())


def keep(path: Path, mark: str) -> str:
    """Make the directory anew if it vanished under a running server; returns a sentence on that, "" if all is well.

    Capture opens every file by its path, so it goes on in the new directory; what was being written is lost. Raises
    HostError if something else came back in its place (a link, a file, another user's directory, strange files).
    """
    if is_marked(path) and not path.is_symlink():
        return ""
    try:
        claim(path, mark)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise HostError(f"The dump directory {path} vanished and cannot be made again: {reason}.") from error
    return f"The dump directory {path} vanished under the server and was made again. {likely_cause(path)}"


def likely_cause(path: Path) -> str:
    """Who most often removes a dump directory, and what keeps it."""
    if path.is_relative_to("/dev/shm") and os.geteuid() != 0:  # noqa: S108
        return (
            "Most likely systemd-logind removed it at this user's last logout (RemoveIPC=yes): "
            "`loginctl enable-linger` keeps it."
        )
    return "Most likely a person or a cleaner of temporary files (systemd-tmpfiles) removed it."


def is_marked(path: Path) -> bool:
    """Whether Roost made this directory its own."""
    return is_own(path / DUMP_MARKER)


def claimed_by(path: Path) -> str:
    """The mark of the server that claimed the directory last; "" if there is none, or another user wrote it."""
    try:
        return read_own(path / DUMP_MARKER).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def sweep(path: Path) -> None:
    """Remove what a dead server was still writing, its processes' status and the sessions that registered with it.

    Whole dumps stay for the collector; an extractor registers again with every start of a server.
    """
    for pattern in (f"{ASIDE}*", ".capture-*.json", f"{PREFIX}*"):
        for left in path.glob(pattern):
            left.unlink(missing_ok=True)


def empty(path: Path) -> int:
    """Remove everything but the marker; returns the bytes freed. An unmarked or missing directory is left as it is."""
    if not path.is_dir() or not is_marked(path):
        return 0
    _check_own(path)
    freed = 0
    for entry in path.iterdir():
        if entry.name == DUMP_MARKER:
            continue
        freed += _size(entry)
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    return freed


def _check_own(path: Path) -> None:
    """A RAM disk is writable by all: a link or another user's directory there is not ours to fill or to empty."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise HostError(
            f"The dump directory {path} is a link, a file or another user's.",
            remedy="Give another `dump_dir`, or have its owner remove it.",
        )


def _size(entry: Path) -> int:
    files = [entry] if not entry.is_dir() or entry.is_symlink() else [p for p in entry.rglob("*") if p.is_file()]
    total = 0
    for file in files:
        try:
            total += file.lstat().st_size
        except FileNotFoundError:
            continue
    return total
