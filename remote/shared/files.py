"""Whole or not at all: the only ways in which Roost's host side creates a file.

A name that exists on disk is complete: written aside in the same folder, fsynced, renamed, folder fsynced.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
SHARED_MODE = 0o666
"""Less the umask: for what other users may read, such as delivered shards."""
ASIDE = ".aside-"
"""Prefix of a file still being written; whoever cleans a folder may delete these when their writer is dead."""


def make_directory(path: Path) -> Path:
    """Create `path` and its parents, readable by the owner alone."""
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    return path


def fsync_directory(path: Path) -> None:
    """Make renames inside `path` survive a power cut."""
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

    Without `durable` nothing is fsynced: for file systems that cannot. The umask applies to `mode`.
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
