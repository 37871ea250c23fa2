"""Creates files atomically, and reads files in folders into which other users may have put something else.

A file with its final name is complete: it was written aside in the same folder, fsynced and renamed, and the folder was
fsynced. Reading accepts only this user's regular files: it follows no link, and no FIFO or device can block it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remote.shared.errors import ForeignFileError

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
SHARED_MODE = 0o666
"""For files that other users may read, such as delivered shards; the umask applies."""
ASIDE = ".aside-"
"""Prefix of a file that is still being written; it may be deleted if its writer is dead."""


MOST_BYTES = 64 << 20
"""Most bytes of a state file, marker or description."""


def open_own(path: Path, flags: int = os.O_RDONLY, *, owner: int | None = None) -> int:
    """Open (with O_CREAT, create) a regular file and return its descriptor; never blocks, never follows a link.

    `owner` is the user id that the file must belong to, by default this process's. Raises ForeignFileError for a link,
    a FIFO, a socket, a device, a folder or another user's file, and OSError as `os.open` does.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ForeignFileError(path, "a link") from error
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise ForeignFileError(path, "no regular file") from error
        raise
    status = os.fstat(descriptor)
    wrong = _wrong(status, os.geteuid() if owner is None else owner)
    if wrong:
        os.close(descriptor)
        raise ForeignFileError(path, wrong)
    return descriptor


def _wrong(status: os.stat_result, owner: int) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    return "" if status.st_uid == owner else f"a file of user {status.st_uid}"


def read_own(path: Path, *, owner: int | None = None, most: int = MOST_BYTES) -> bytes:
    """Return the content of this user's regular file. Raises like `open_own`, also above `most` bytes."""
    with os.fdopen(open_own(path, owner=owner), "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ForeignFileError(path, f"longer than {most} bytes")
    return content


def is_own(path: Path) -> bool:
    """Return whether `path` is a regular file of this user; False for a link."""
    try:
        return not _wrong(path.lstat(), os.geteuid())
    except OSError:
        return False


def make_directory(path: Path) -> Path:
    """Create `path` and its missing parents (0700), and return `path`. Raises OSError."""
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    return path


def fsync_directory(path: Path) -> None:
    """Write the folder's entries to the disk, so that renames inside it survive a power cut. Raises OSError."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def written_aside(path: Path, *, durable: bool = True, mode: int = FILE_MODE) -> Iterator[Path]:
    """Yield a name beside `path` to write to; on success fsync it and rename it to `path`, on failure remove it.

    Without `durable` nothing is fsynced, for file systems that cannot. The umask applies to `mode`.
    """
    aside = path.with_name(f"{ASIDE}{os.getpid()}-{secrets.token_hex(4)}-{path.name}")
    os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield aside
        if durable:
            _fsync(aside, os.O_RDONLY)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if durable:
        fsync_directory(path.parent)


def write_whole(path: Path, content: bytes, *, durable: bool = True, mode: int = FILE_MODE) -> None:
    """Replace `path` with `content`, atomically and (with `durable`) durably."""
    make_directory(path.parent)
    with written_aside(path, durable=durable, mode=mode) as aside:
        aside.write_bytes(content)
