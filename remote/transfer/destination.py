"""A folder that shards are delivered to: its paths, its lock, its ledger, and what is there already.

    DEST/hidden_states/hs_{i}.safetensors   whole and verified, every one (`….rz` where they are kept compressed)
    DEST/roost/ledger.sqlite                what was delivered
    DEST/roost/manifest.json                what the records are
    DEST/roost/parts/                       records under way; nobody else's names
    DEST/roost/lock                         held by the one pull that writes here

The dataset's own files lie beside them in DEST, so that a trainer loads DEST as it is. Runs where the shards land.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import threading
from pathlib import Path
from typing import BinaryIO

import xxhash

from remote.errors import HostError
from remote.files import FILE_MODE, make_directory
from remote.messages.extract import ShardRow
from remote.messages.transfer import DeliveredRow, Store
from remote.paths import shard_name
from remote.transfer.landing import Landing
from remote.transfer.ledger import DestinationLedger

_PIECE_BYTES = 1 << 20
SPARE_BYTES = 256 << 20
"""Left free on the destination's file system: a full one breaks more than this pull."""


class Destination:
    """Opened by one process at a time; a context manager. Thread-safe."""

    def __init__(self, root: Path, store: Store = "plain") -> None:
        self.root = root
        self.store: Store = store
        """How records are kept that are delivered from now on."""
        self.shards = root / "hidden_states"
        self.roost = root / "roost"
        self.parts = self.roost / "parts"
        self._claims: set[int] = set()
        self._claim_lock = threading.Lock()

    def __enter__(self) -> Destination:
        try:
            for folder in (self.shards, self.parts):
                make_directory(folder)
            self._lock = self._locked()
        except OSError as error:
            raise HostError(f"{self.root} cannot be written: {error.strerror}.") from error
        self.ledger = DestinationLedger(self.roost / "ledger.sqlite")
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.close()
        os.close(self._lock)

    def final(self, index: int, stored: Store = "plain") -> Path:
        """Where a record is when it is whole and verified."""
        return self.shards / (shard_name(index) + (".rz" if stored == "compressed" else ""))

    def part(self, index: int) -> Path:
        """Where a record is while it is under way."""
        return self.parts / f"{shard_name(index)}.part"

    def free_bytes(self) -> int:
        """What is left on the file system for this user."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def has(self, row: ShardRow, host: str) -> bool:
        """Whether this record was delivered and its file is still there in its size.

        The first delivery stays, whoever else has the record too, except where the very same host made it anew.
        """
        known = self.ledger.find(row.index)
        if known is None or (known.host == host and known.xxh3 != row.xxh3):
            return False
        return _size(self.final(row.index, known.stored)) == known.disk_bytes

    def claim(self, index: int) -> bool:
        """Whether the caller is the only one that pulls this record now."""
        with self._claim_lock:
            if index in self._claims:
                return False
            self._claims.add(index)
            return True

    def release(self, index: int) -> None:
        """The record is delivered, or given up."""
        with self._claim_lock:
            self._claims.discard(index)

    def landing(self, row: ShardRow) -> Landing:
        """Begin or resume a record. A file under the final name that no row vouches for becomes its part.

        Raises OSError (ENOSPC) where the record would fill the disk.
        """
        if self.free_bytes() < row.size_bytes + SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.root))
        final, part = self.final(row.index), self.part(row.index)
        if final.exists():
            final.replace(part)
        return Landing(row, part)

    def is_intact(self, known: DeliveredRow) -> bool:
        """Whether the record's plain bytes have their size and digest; reads all of them."""
        path = self.final(known.index, known.stored)
        digest, size = xxhash.xxh3_128(), 0
        try:
            with _plain(path, known.stored) as stream:
                while piece := stream.read(_PIECE_BYTES):
                    digest.update(piece)
                    size += len(piece)
        except (OSError, ValueError):
            return False
        return size == known.size_bytes and digest.hexdigest() == known.xxh3

    def _locked(self) -> int:
        descriptor = os.open(self.roost / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise HostError(f"Another pull writes to {self.root}.", remedy="Wait for it, or stop it.") from error
        return descriptor


def _plain(path: Path, stored: Store) -> BinaryIO:
    """A record's plain bytes as a file."""
    if stored == "plain":
        return path.open("rb")
    from remote.codec.reader import CompressedShard

    return io.BufferedReader(CompressedShard(path))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
