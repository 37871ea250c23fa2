"""The shelves of a queue that nobody needs to look at again.

Called by replicas. A look at all claims or results of a large run would cost a network file system thousands of
directory reads, for every replica. A mark, which is an empty file named after the shelf, saves that: marks say that
every chunk of a shelf is claimed, or published, and neither is ever undone. A missing mark costs a look and nothing
more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from remote.shared.files import FILE_MODE, make_directory
from remote.shared.leases.claims import shelves


class Shelves:
    """The shelves that one holder still has to look at."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = make_directory(folder)
        self._all = shelves(count)
        self._marked: set[int] = set()

    def mark(self, shelf: int) -> None:
        """Say to everybody that a shelf needs no further look."""
        (self._folder / str(shelf)).touch(mode=FILE_MODE)
        self._marked.add(shelf)

    def open(self) -> list[int]:
        """The shelves without a mark; reads the marks of others."""
        if len(self._marked) < len(self._all):
            self._marked |= {int(entry.name) for entry in self._folder.iterdir() if entry.name.isdecimal()}
        return [shelf for shelf in self._all if shelf not in self._marked]

    def from_here(self, start: int) -> Iterator[int]:
        """The shelves without a mark, from `start` on and round, as they are now."""
        left = self.open()
        yield from (shelf for shelf in left if shelf >= start)
        yield from (shelf for shelf in left if shelf < start)

    def at_random(self, draw: Random) -> Iterator[int]:
        """The shelves without a mark in a random order, so that holders do not all look at the same shelf."""
        left = self.open()
        draw.shuffle(left)
        yield from left
