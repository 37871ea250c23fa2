"""Results of chunks, each published once: whole folders that get their final name by one rename.

Called by the worker that finished a chunk of a shared pool, on any machine that sees its folder. A rename never
replaces a folder that is not empty, on local disks and over NFS, so the first worker to publish a chunk wins, whatever
token its claim has. Later workers are told that the chunk is published.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from remote.shared.files import ASIDE, fsync_directory, make_directory
from remote.shared.leases.claims import shelf_of


class Results:
    """The published chunks of one pool."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, chunk: int) -> Path:
        """Return the path of a chunk's result, which may not exist yet."""
        return self._folder / str(shelf_of(chunk)) / str(chunk)

    def aside(self, chunk: int) -> Path:
        """Make and return a new folder to write a chunk's result to."""
        name = f"{ASIDE}{chunk}-{os.getpid()}-{secrets.token_hex(8)}"
        return make_directory(make_directory(self.path(chunk).parent) / name)

    def publish(self, chunk: int, aside: Path) -> bool:
        """Give a folder that is whole and durable its final name; return False if the chunk is published."""
        target = self.path(chunk)
        inode = aside.stat().st_ino
        fsync_directory(aside)
        try:
            aside.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            if target.stat().st_ino != inode:  # over NFS, the answer to a rename that was made can get lost
                return False
        fsync_directory(target.parent)
        return True

    def sweep(self, chunk: int) -> None:
        """Remove what other holders have left beside a published chunk; they could not publish it any more."""
        for entry in self.path(chunk).parent.glob(f"{ASIDE}{chunk}-*"):
            shutil.rmtree(entry, ignore_errors=True)

    def has(self, chunk: int) -> bool:
        """Return whether a chunk is published."""
        return self.path(chunk).is_dir()

    def chunks(self, shelf: int | None = None) -> Iterator[int]:
        """Yield the published chunks, of one shelf or of all."""
        names = _numbers(self._folder) if shelf is None else [shelf]
        for name in names:
            yield from _numbers(self._folder / str(name))


def _numbers(folder: Path) -> list[int]:
    """Return the names in a folder that are numbers; none if there is no such folder."""
    try:
        return sorted(int(entry.name) for entry in os.scandir(folder) if entry.name.isdecimal())
    except (FileNotFoundError, NotADirectoryError):
        return []
