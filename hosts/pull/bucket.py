"""A bucket as a destination: any URL that fsspec opens (`s3://…`, `gs://…`, `az://…`). Runs on the laptop.

Records land in a spool beside the inventory, are hashed and repaired there, and are uploaded whole: an object store
shows an object only once it is complete. The ledger is in the spool and is copied to the bucket as it grows. A laptop
without the spool takes the bucket's copy.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import fsspec

from hosts.errors import HostError, RoostError, UsageError
from remote.shared.files import make_directory
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.transfer import DeliveredRow, Store
from remote.shared.redact import without_credentials
from remote.shared.transfer.destination import HIDDEN_STATES, Destination, Placed, compressed_stream, pack_part
from remote.shared.transfer.landing import Landing
from remote.shared.transfer.ledger import foreign_rows

LEDGER = "roost/ledger.sqlite"
LEDGER_SECONDS = 30.0
"""How far the bucket's copy of the ledger may lag behind during a pull."""


def is_bucket(to: str) -> bool:
    """Return whether a destination is a URL and not a folder."""
    return "://" in to


def destination_of(to: str, store: Store, spools: Path, identity: RunIdentity) -> Destination:
    """Return the unopened destination that a person named; raises UsageError if fsspec does not know its kind.

    Each run has its own spool for a bucket, because the remains of another run say nothing about this run.
    """
    if not is_bucket(to):
        return Destination(Path(to).expanduser(), store, identity.folder)
    spool = spools / hashlib.sha256(f"{to}\n{identity.digest}".encode()).hexdigest()[:16]
    return Bucket(to, spool, store, identity.folder)


class Bucket(Destination):
    """A bucket, opened by one process at a time on this laptop; a context manager. Thread-safe."""

    batch_records = 8
    """Few verified records wait in the spool for their upload, because they can be large."""

    def __init__(self, url: str, spool: Path, store: Store, folder: str = HIDDEN_STATES) -> None:
        super().__init__(spool, store, folder)
        self.name = without_credentials(url)
        try:
            self._files, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"{self.name} cannot be opened: {without_credentials(str(error))}.",
                remedy="Install fsspec's package for it.",
            ) from error
        self._path = str(path).rstrip("/")
        self._sizes: dict[str, int] = {}
        self._copied_at = 0.0

    def __enter__(self) -> Bucket:
        make_directory(self.root)
        super().__enter__()
        with ExitStack() as undo, self._reading():
            undo.callback(super().__exit__)
            found = self._files.find(f"{self._path}/{self.shards.name}", detail=True)
            self._sizes = {name: int(about["size"]) for name, about in found.items()}
            self._adopt_ledger()
            undo.pop_all()
        return self

    def __exit__(self, *about: object) -> None:
        try:
            self._copy_ledger()
        finally:
            super().__exit__(*about)

    def room_bytes(self) -> float:
        return math.inf

    def refuse_freeing(self) -> None:
        """Allow freeing: an uploaded object stays, even if the spool's file system cannot fsync."""

    def place(self, landing: Landing) -> Placed:
        """Upload a verified record; it appears in the bucket whole or not at all."""
        source = landing.part
        if self.store == "compressed":
            source = landing.part.with_suffix(".rz")
            pack_part(landing, source, durable=self.durable)
        size = source.stat().st_size
        name = self._object(self._shard(landing.row.index, self.store))
        self._upload(source, name)
        self._sizes[name] = size
        landing.part.unlink()
        source.unlink(missing_ok=True)
        return Placed(True, size)

    def flush(self) -> bool:
        return True

    def committed(self, indices: Iterable[int]) -> None:
        if time.monotonic() - self._copied_at > LEDGER_SECONDS:
            self._copy_ledger()

    def read(self, relative: str) -> bytes | None:
        with self._reading():
            try:
                content: bytes = self._files.cat_file(self._object(relative))
            except FileNotFoundError:
                return None
            return content

    def holds_records(self) -> bool:
        with self._reading():
            return bool(self._files.find(f"{self._path}/{self.shards.name}"))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn fsspec's errors into one sentence; botocore's errors have no common root with OSError."""
        try:
            yield
        except RoostError:
            raise
        except Exception as error:
            raise HostError(
                f"{self.name} could not be read: {without_credentials(str(error))}.",
                remedy="Check the bucket's name and your access keys.",
            ) from error

    def equals(self, relative: str, source: Path) -> bool:
        """Compare by size, and the dataset's manifest, which has the digest, by content."""
        name = self._object(relative)
        if not self._files.exists(name) or self._files.size(name) != source.stat().st_size:
            return False
        return source.suffix != ".json" or self._files.cat_file(name) == source.read_bytes()

    def put(self, relative: str, source: Path) -> None:
        self._upload(source, self._object(relative))

    def put_bytes(self, relative: str, content: bytes) -> None:
        self._files.pipe_file(self._object(relative), content)

    def _object(self, relative: str) -> str:
        return f"{self._path}/{relative}"

    def _shard(self, index: int, stored: Store) -> str:
        return f"{self.shards.name}/{self.final(index, stored).name}"

    def _stored_size(self, known: DeliveredRow) -> int:
        return self._sizes.get(self._object(self._shard(known.index, known.stored)), -1)

    def _plain(self, known: DeliveredRow) -> BinaryIO:
        name = self._object(self._shard(known.index, known.stored))
        if known.stored == "plain":
            stream: BinaryIO = self._files.open(name, "rb")
            return stream
        local = self.parts / f"{known.index}.check"
        self._files.get_file(name, str(local))
        try:
            return compressed_stream(local)
        finally:
            local.unlink()

    def _upload(self, source: Path, name: str) -> None:
        try:
            self._files.put_file(str(source), name)
            found: Any = self._files.info(name)["size"]
        except OSError:
            raise
        except Exception as error:  # botocore's errors have no common root with OSError
            raise OSError(None, f"{name} could not be uploaded: {error}") from error
        if int(found) != source.stat().st_size:
            raise OSError(None, f"{name} has {found} bytes after its upload")

    def _copy_ledger(self) -> None:
        self._copied_at = time.monotonic()
        self._upload(self.root / LEDGER, self._object(LEDGER))

    def _adopt_ledger(self) -> None:
        """Add the rows of the bucket's copy that the spool's ledger lacks."""
        if not self._files.exists(self._object(LEDGER)):
            return
        with tempfile.TemporaryDirectory(dir=self.roost) as folder:
            copy = Path(folder) / "ledger.sqlite"
            self._files.get_file(self._object(LEDGER), str(copy))
            self.ledger.record([row for row in foreign_rows(copy) if self.ledger.find(row.index) is None])
