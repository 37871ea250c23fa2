"""Marks of the shelves of a queue that need not be read again.

Called by replicas. To read all claims or results of a large run would cost a network file system thousands of directory
reads for every replica. A mark, which is an empty file named after the shelf, saves that: it says that every chunk of
the shelf is claimed, or published, which is never undone. A missing mark costs one read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from remote.shared.files import FILE_MODE, make_directory
from remote.shared.leases.claims import shelves


class Shelves:
    """The shelves that one holder still has to read."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = make_directory(folder)
        self._all = shelves(count)
        self._marked: set[int] = set()

    def mark(self, shelf: int) -> None:
        """Tell all holders that a shelf need not be read again."""
        (self._folder / str(shelf)).touch(mode=FILE_MODE)
        self._marked.add(shelf)

    def open(self) -> list[int]:
        """Return the shelves without a mark; reads the marks of others."""
        if len(self._marked) < len(self._all):
            self._marked |= {int(entry.name) for entry in self._folder.iterdir() if entry.name.isdecimal()}
        return [shelf for shelf in self._all if shelf not in self._marked]

    def from_here(self, start: int) -> Iterator[int]:
        """Yield the shelves without a mark now, from `start` on and then from the first."""
        left = self.open()
        yield from (shelf for shelf in left if shelf >= start)
        yield from (shelf for shelf in left if shelf < start)

    def at_random(self, draw: Random) -> Iterator[int]:
        """Yield the shelves without a mark in random order, so that holders do not all read the same shelf."""
        left = self.open()
        draw.shuffle(left)
        yield from left
