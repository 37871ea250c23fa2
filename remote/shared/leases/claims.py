"""Who holds which chunk of a pool: one file a claim, which only one claimant can create.

Called by whoever takes work from a pool, on any machine that sees its folder. `link()` creates the file: it is atomic
on local disks and over NFS alike, and the file is whole from its first moment. A claim is never changed or removed; a
later claim of the same chunk has a higher token and takes its place.
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

FOLDER_CLAIMS = 1000
"""Chunks whose claims share one folder: a network file system is slow with very many names in one."""


class Claim(Message):
    """A chunk is this holder's, until a claim with a higher token says otherwise."""

    chunk: int = Field(ge=0)
    token: int = Field(ge=1)
    holder: str
    """Whoever works on it: a host, or a replica's attempt."""
    lease: str = ""
    """The lease by which the records went to another host; "" if the pool's own workers took the chunk."""
    ranges: Ranges = Field(default_factory=list)
    """The records that went with the lease: those of the chunk that were open then."""
    tokens: int = 0


class Claims:
    """The claims of one pool."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, claim: Claim) -> bool:
        """Make the claim, durably; False if somebody made a claim with this chunk and token before."""
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

    def newest(self, chunk: int) -> Claim | None:
        """The claim that counts for a chunk: the one with the highest token."""
        tokens = [token for found, token in self._names(self._path(chunk, 1).parent) if found == chunk]
        return self._read(chunk, max(tokens)) if tokens else None

    def holds(self, claim: Claim) -> bool:
        """Whether a claim still counts: no claim of its chunk has a higher token."""
        return not self._path(claim.chunk, claim.token + 1).exists()

    def tokens(self) -> dict[int, int]:
        """The highest token of every chunk that was ever claimed."""
        found: dict[int, int] = {}
        if self._folder.is_dir():
            for folder in self._folder.iterdir():
                for chunk, token in self._names(folder):
                    found[chunk] = max(token, found.get(chunk, 0))
        return found

    def all(self) -> dict[int, Claim]:
        """The claim that counts for every chunk that was ever claimed."""
        return {chunk: self._read(chunk, token) for chunk, token in sorted(self.tokens().items())}

    def _path(self, chunk: int, token: int) -> Path:
        return self._folder / str(chunk // FOLDER_CLAIMS) / f"{chunk}.{token}.json"

    def _read(self, chunk: int, token: int) -> Claim:
        path = self._path(chunk, token)
        try:
            return Claim.model_validate_json(read_own(path))
        except (OSError, ValidationError) as error:
            raise HostError(
                f"The claim {path} could not be read: {type(error).__name__}.",
                remedy="`inv extract --hosts all` with another set of hosts gives the open records out anew.",
            ) from error

    @staticmethod
    def _names(folder: Path) -> Iterator[tuple[int, int]]:
        """Chunk and token of every claim in a folder; other names are ignored."""
        try:
            names = os.listdir(folder)  # noqa: PTH208 -- names alone
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            chunk, _, rest = name.partition(".")
            token, _, suffix = rest.partition(".")
            if chunk.isdecimal() and token.isdecimal() and suffix == "json":
                yield int(chunk), int(token)


@contextmanager
def _aside(folder: Path, content: bytes) -> Iterator[Path]:
    """Yield a durable file with this content, under a name that nobody else has; it is gone after the block."""
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
