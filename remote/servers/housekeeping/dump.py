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

    Raises HostError if the directory holds files that are not Roost's, or belongs to another user, or is no directory.
    """
    make_directory(path)
    _check_own(path)
    path.chmod(DIRECTORY_MODE)  # hidden states are private, and an older directory may be open to other users
    if not is_marked(path) and any(path.iterdir()):
        raise HostError(
            f"The dump directory {path} holds files but no {DUMP_MARKER} marker, so they are not Roost's.",
            remedy="Give another `dump_dir`, or move those files away.",
        )
    write_whole(path / DUMP_MARKER, mark.encode())


def keep(path: Path, mark: str) -> str:
    """Create the directory again if it vanished under a running server.

    Returns a sentence that says so, or "" if the directory was there. Capture opens every file by its path, so it goes
    on in the new directory; dumps that were being written are lost. Raises HostError if something else lies at the
    path now (a link, a file, another user's directory, files that are not Roost's).
    """
    if is_marked(path) and not path.is_symlink():
        return ""
    try:
        claim(path, mark)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise HostError(f"The dump directory {path} vanished and cannot be created again: {reason}.") from error
    return f"The dump directory {path} vanished under the server and was created again. {likely_cause(path)}"


def likely_cause(path: Path) -> str:
    """Return a sentence on who most likely removed the directory, and on how to prevent it."""
    if path.is_relative_to("/dev/shm") and os.geteuid() != 0:  # noqa: S108
        return (
            "Most likely systemd-logind removed it at this user's last logout (RemoveIPC=yes): "
            "`loginctl enable-linger` prevents that."
        )
    return "Most likely a person or the system's cleaner of temporary files (systemd-tmpfiles) removed it."


def is_marked(path: Path) -> bool:
    """Return whether the directory carries Roost's marker, written by this user."""
    return is_own(path / DUMP_MARKER)


def claimed_by(path: Path) -> str:
    """Return the mark of the server that claimed the directory last, or "" without a marker of this user's."""
    try:
        return read_own(path / DUMP_MARKER).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def sweep(path: Path) -> None:
    """Remove a dead server's unfinished dumps, the status files of its processes and the sessions registered with it.

    Finished dumps stay for the collector. An extractor registers again at every start of a server.
    """
    for pattern in (f"{ASIDE}*", ".capture-*.json", f"{PREFIX}*"):
        for left in path.glob(pattern):
            left.unlink(missing_ok=True)


def empty(path: Path) -> int:
    """Remove everything except the marker and return the bytes freed; an unmarked directory is left as it is."""
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
    """Raise HostError for a link, a file or another user's directory: every user may write to a RAM disk."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise HostError(
            f"The dump directory {path} is a link, a file, or a directory of another user.",
            remedy="Give another `dump_dir`, or ask its owner to remove it.",
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
