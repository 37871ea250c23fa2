"""A folder that shards are delivered to: its paths, its lock, its ledger, and what is there already.

    DEST/hidden_states/hs_{i}.safetensors   whole and verified shards (`….rz` if they are kept compressed);
                                            a run of answers has them in DEST/answers/
    DEST/roost/ledger.sqlite                what was delivered
    DEST/roost/manifest.json                what the records are
    DEST/roost/parts/                       records under way
    DEST/roost/lock                         held by the one pull that writes here

The dataset's own files lie beside them in DEST, so that a trainer loads DEST as it is. Files and folders have the
modes of the umask, so that a trainer under another user can read them. Runs where the shards land.

A file under a final name with a ledger row is replaced by one rename, once the new file is whole and verified.
"""

from __future__ import annotations

import errno
import fcntl
import filecmp
import io
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

from remote.shared import ranges
from remote.shared.errors import HostError
from remote.shared.files import SHARED_MODE, write_whole, written_aside
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.transfer import DeliveredRow, Store
from remote.shared.paths import COMPRESSED_SUFFIX, shard_name
from remote.shared.transfer.landing import Landing
from remote.shared.transfer.ledger import DestinationLedger

HIDDEN_STATES = "hidden_states"
OUR_FOLDERS = (HIDDEN_STATES, "answers", "roost")
"""Folders of a destination that no file of a dataset may be put into."""
_PIECE_BYTES = 1 << 20
_CANNOT_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
SPARE_BYTES = 256 << 20
"""Bytes left free on the destination's file system, because a full one breaks more than this pull."""
PACKED_SHARE = 0.7
"""The expected size of a compressed shard, as a share of its plain bytes."""


@dataclass(frozen=True)
class Placed:
    """A record under its final name."""

    durable: bool
    disk_bytes: int


class Destination:
    """Opened by one process at a time; a context manager. Thread-safe."""

    batch_records = 256
    """The most records in one commit."""

    def __init__(self, root: Path, store: Store = "plain", folder: str = HIDDEN_STATES) -> None:
        """`folder` is the folder of the run's records, by its identity; it is not needed to read the manifest."""
        self.root = root
        self.name = str(root)
        """The destination's name in messages."""
        self.store: Store = store
        """How records are kept that are delivered from now on."""
        self.durable = True
        """Whether the file system that records land on can fsync; known once the destination is open."""
        self.shards = root / folder
        self.roost = root / "roost"
        self.parts = self.roost / "parts"

    def __enter__(self) -> Destination:
        try:
            for folder in (self.shards, self.parts):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
        except OSError as error:
            raise HostError(f"{self.root} cannot be written: {error.strerror}.") from error
        self.durable = fsync(self.shards)
        self.ledger = DestinationLedger(self.roost / "ledger.sqlite", durable=self.durable)
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.close()
        os.close(self._lock)

    def refuse_freeing(self) -> None:
        """Raise HostError if records are not safe here, so that hosts must keep theirs."""
        if not self.durable:
            raise HostError(
                f"--free is refused: the file system of {self.name} cannot fsync, so nothing there is safe.",
                remedy="Pull to another disk, or pull without --free.",
            )

    def final(self, index: int, stored: Store = "plain") -> Path:
        """Return the path of a record that is whole and verified."""
        return self.shards / (shard_name(index) + (COMPRESSED_SUFFIX if stored == "compressed" else ""))

    def part(self, index: int) -> Path:
        """Return the path of a record that is under way."""
        return self.parts / f"{shard_name(index)}.part"

    def room_bytes(self) -> float:
        """Return how many bytes may be brought here before the disk counts as full; infinite if there is no limit."""
        left = sum(max(0, _size(path)) for path in self.parts.iterdir())
        return self.free_bytes() - SPARE_BYTES + left

    def free_bytes(self) -> int:
        """Return the free bytes on the file system for this user."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def has(self, row: ShardRow, host: str) -> bool:
        """Return whether this record was delivered and its file still has its size.

        The first delivery stays even if other hosts have the record too, unless the same host made the record again.
        """
        known = self.ledger.find(row.index)
        if known is None or (known.host == host and known.xxh3 != row.xxh3):
            return False
        return self._stored_size(known) == known.disk_bytes

    def landing(self, row: ShardRow) -> Landing:
        """Begin or resume a record.

        A file under the final name without a ledger row becomes the record's part. A file with a row stays until it
        is replaced; its blocks are copied into the part, so that only blocks that differ are fetched.
        A part that is not a regular file, such as another user's link, is removed and never written through.
        Raises OSError (ENOSPC) if the record would fill the disk.
        """
        if self.free_bytes() < row.size_bytes + SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.root))
        final, part = self.final(row.index), self.part(row.index)
        if _size(part) < 0:
            part.unlink(missing_ok=True)
        if _size(final) >= 0:
            if self.ledger.find(row.index) is None:
                final.replace(part)
            elif not part.exists() and _size(final) == row.size_bytes:
                shutil.copyfile(final, part)
        return Landing(row, part)

    def is_intact(self, known: DeliveredRow) -> bool:
        """Return whether the record's plain bytes have their size and digest; reads all of them."""
        digest, size = xxhash.xxh3_128(), 0
        try:
            with self._plain(known) as stream:
                while piece := stream.read(_PIECE_BYTES):
                    digest.update(piece)
                    size += len(piece)
        except (OSError, ValueError):
            return False
        return size == known.size_bytes and digest.hexdigest() == known.xxh3

    def place(self, landing: Landing) -> Placed:
        """Give a verified record its final name, durably if this file system can fsync. Raises OSError."""
        final = self.final(landing.row.index, self.store)
        if self.store == "compressed":
            pack_part(landing, final, durable=self.durable)
            landing.part.unlink()
            return Placed(self.durable, final.stat().st_size)
        durable = fsync(landing.part)
        landing.part.replace(final)
        return Placed(durable, landing.row.size_bytes)

    def flush(self) -> bool:
        """Make the names of placed records durable; False if this file system cannot fsync."""
        return fsync(self.shards)

    def committed(self, indices: Iterable[int]) -> None:
        """Remove the files that the new ledger rows of these records have replaced."""
        replaced: Store = "plain" if self.store == "compressed" else "compressed"
        for index in indices:
            self.final(index, replaced).unlink(missing_ok=True)

    def read(self, relative: str) -> bytes | None:
        """A file's bytes, or None if there is no such file; works on a destination that is not open."""
        try:
            return (self.root / relative).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise HostError(f"{self.root / relative} could not be read: {error.strerror}.") from error

    def holds_records(self) -> bool:
        """Return whether there is a shard under a final name; works on a destination that is not open."""
        return any(self.shards.glob("hs_*.safetensors*"))

    def place_dataset(self, dataset: Path) -> None:
        """Copy a dataset's files here, each whole; `manifest.refuse_other` has compared the datasets before."""
        for source in sorted(path for path in dataset.rglob("*") if path.is_file()):
            relative = source.relative_to(dataset)
            if relative.parts[0] not in OUR_FOLDERS and not self.equals(relative.as_posix(), source):
                self.put(relative.as_posix(), source)

    def missing(self, records: int) -> Ranges:
        """Return the indices of a dataset of so many records that are not in the ledger."""
        return ranges.difference([(0, records)], ranges.from_indices(self.ledger.indices()))

    def equals(self, relative: str, source: Path) -> bool:
        """Return whether there is a file of this name with the bytes of `source`."""
        return (self.root / relative).is_file() and filecmp.cmp(self.root / relative, source, shallow=False)

    def put(self, relative: str, source: Path) -> None:
        """Copy a file to below the root, whole."""
        (self.root / relative).parent.mkdir(parents=True, exist_ok=True)
        with written_aside(self.root / relative, durable=self.durable, mode=SHARED_MODE) as aside:
            shutil.copyfile(source, aside)

    def put_bytes(self, relative: str, content: bytes) -> None:
        """Write a file below the root, whole."""
        write_whole(self.root / relative, content, durable=self.durable, mode=SHARED_MODE)

    def _stored_size(self, known: DeliveredRow) -> int:
        return _size(self.final(known.index, known.stored))

    def _plain(self, known: DeliveredRow) -> BinaryIO:
        """Open a record's plain bytes."""
        path = self.final(known.index, known.stored)
        return compressed_stream(path) if known.stored == "compressed" else path.open("rb")

    def _locked(self) -> int:
        descriptor = os.open(self.roost / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, SHARED_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise HostError(f"Another pull writes to {self.name}.", remedy="Wait for it, or stop it.") from error
        return descriptor


def cannot_write(destination: Destination, error: OSError) -> HostError:
    """Return the error of a destination that is full or gone."""
    free = f" ({destination.free_bytes() / 1e9:.1f} GB free)" if error.errno == errno.ENOSPC else ""
    return HostError(
        f"{destination.name} could not be written: {error.strerror or error}{free}.",
        remedy="Make room; the next pull goes on from what the ledger lists as delivered.",
    )


def _size(path: Path) -> int:
    """Return the bytes of a regular file; -1 for anything else, such as a link, or nothing."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def compressed_stream(path: Path) -> BinaryIO:
    """Open the plain bytes of a container; imports numpy and zstandard."""
    from remote.shared.codec.reader import CompressedShard

    return io.BufferedReader(CompressedShard(path))


def pack_part(landing: Landing, target: Path, *, durable: bool = True) -> None:
    """Compress a verified part to `target`, whole and fsynced; its bytes are verified once more on the way."""
    from remote.shared.codec.container import pack_file

    if pack_file(landing.part, target, durable=durable, mode=SHARED_MODE).xxh3 != landing.row.xxh3:
        target.unlink()
        raise OSError(errno.EIO, "a record changed on disk while it was compressed", str(landing.part))


def fsync(path: Path) -> bool:
    """Make a file or folder durable; False if this file system cannot fsync."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return True
    except OSError as error:
        if error.errno in _CANNOT_FSYNC:
            return False
        raise
    finally:
        os.close(descriptor)
