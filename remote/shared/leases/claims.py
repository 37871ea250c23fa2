"""The claims of a pool's chunks: one file for each claim, which only one claimant can create.

Called by every process that takes work from a pool, on any machine that sees its folder. `link()` creates the file: it
is atomic on local disks and over NFS, and the file is whole from the first moment. A claim is never changed or removed;
a later claim of the same chunk has a higher token and replaces it. If a pool is on one machine, whose own worker takes
most chunks, the files of that worker's claims are empty: nothing to write or read, and a power cut cannot damage them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, ValidationError

from remote.shared.errors import HostError
from remote.shared.files import ASIDE, FILE_MODE, fsync_directory, make_directory, read_own
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.envelope import Message

SHELF_CHUNKS = 1000
"""Chunks whose claims or results share one folder, called a shelf: a network file system is slow with very many names
in one folder."""


def shelf_of(chunk: int) -> int:
    """Return the shelf that a chunk belongs to."""
    return chunk // SHELF_CHUNKS


def shelves(count: int) -> range:
    """Return the shelves of `count` chunks."""
    return range(-(-count // SHELF_CHUNKS))


def chunks_on(shelf: int, count: int) -> range:
    """Return the chunks of a shelf, if there are `count` chunks in all."""
    return range(shelf * SHELF_CHUNKS, min(count, (shelf + 1) * SHELF_CHUNKS))


class Claim(Message):
    """A chunk is this holder's, until a claim with a higher token says otherwise."""

    chunk: int = Field(ge=0)
    token: int = Field(ge=1)
    holder: str = ""
    """The worker: another host, or a replica's attempt; "" for the worker on the pool's own machine."""
    lease: str = ""
    """The lease by which the records went to another host."""
    ranges: Ranges = Field(default_factory=list)
    """The records of the lease: those of the chunk that were open at that time."""
    tokens: int = 0


class Claims:
    """The claims of one pool."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, claim: Claim) -> bool:
        """Make the claim, durably; return False if there is a claim with this chunk and token."""
        path = self._path(claim.chunk, claim.token)
        with _aside(make_directory(path.parent), claim.model_dump_json().encode()) as aside:
            try:
                os.link(aside, path)
            except FileExistsError:
                # Over NFS the answer to a link that was made can get lost, and the repeated request then fails.
                if aside.stat().st_nlink != 2:
                    return False
        fsync_directory(path.parent)
        return True

    def claim_here(self, chunk: int) -> bool:
        """Claim a chunk for the worker on the pool's own machine; return False if it is claimed."""
        path = self._path(chunk, 1)
        make_directory(path.parent)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
        except FileExistsError:
            return False
        return True

    def newest(self, chunk: int) -> Claim | None:
        """Return the valid claim of a chunk, which is the one with the highest token."""
        token = self.tokens(shelf_of(chunk)).get(chunk)
        return None if token is None else self.read(chunk, token)

    def holds(self, claim: Claim) -> bool:
        """Return whether a claim is still valid: no claim of its chunk has a higher token."""
        return not self._path(claim.chunk, claim.token + 1).exists()

    def made_at(self, claim: Claim) -> float:
        """Return when a claim was made, by the clock of the file system; 0 if its file cannot be read."""
        try:
            return self._path(claim.chunk, claim.token).stat().st_mtime
        except OSError:
            return 0.0

    def tokens(self, shelf: int | None = None) -> dict[int, int]:
        """Return the highest token of every claimed chunk, on one shelf or on all."""
        found: dict[int, int] = {}
        for folder in self._folders() if shelf is None else [self._folder / str(shelf)]:
            for chunk, token in self._entries(folder):
                found[chunk] = max(token, found.get(chunk, 0))
        return dict(sorted(found.items()))

    def all(self) -> dict[int, Claim]:
        """Return the valid claim of every claimed chunk."""
        return {chunk: self.read(chunk, token) for chunk, token in self.tokens().items()}

    def _folders(self) -> Iterator[Path]:
        yield from self._folder.iterdir() if self._folder.is_dir() else ()

    def _path(self, chunk: int, token: int) -> Path:
        return self._folder / str(shelf_of(chunk)) / f"{chunk}.{token}.json"

    def read(self, chunk: int, token: int) -> Claim:
        """Return a claim that was made; raises HostError if it is damaged."""
        path = self._path(chunk, token)
        try:
            content = read_own(path)
            return Claim.model_validate_json(content) if content else Claim(chunk=chunk, token=token)
        except (OSError, ValidationError) as error:
            raise HostError(
                f"The claim {path} could not be read: {type(error).__name__}.",
                remedy="A new epoch assigns every open record again: `inv extract` with another set of --hosts.",
            ) from error

    @staticmethod
    def _entries(folder: Path) -> Iterator[tuple[int, int]]:
        """Yield chunk and token of every claim in a folder; other names are ignored."""
        try:
            names = [entry.name for entry in os.scandir(folder)]
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            chunk, _, rest = name.partition(".")
            token, _, suffix = rest.partition(".")
            if chunk.isdecimal() and token.isdecimal() and suffix == "json":
                yield int(chunk), int(token)


@contextmanager
def _aside(folder: Path, content: bytes) -> Iterator[Path]:
    """Yield a durable file with this content, under a unique name; it is removed after the block."""
    aside = folder / f"{ASIDE}{os.getpid()}-{secrets.token_hex(8)}"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        yield aside
    finally:
        aside.unlink(missing_ok=True)
