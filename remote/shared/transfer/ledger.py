"""The destination's own ledger, `DEST/roost/ledger.sqlite`: which record was delivered, from where, with what digest.

Runs where the shards land; the only owner of its schema. A row is committed after its file is durable under its
final name, never before. No WAL: destinations can be network file systems, where WAL's shared memory is not.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from remote.shared.errors import HostError
from remote.shared.messages.envelope import first_problem
from remote.shared.messages.transfer import DeliveredRow

_SCHEMA = """
CREATE TABLE IF NOT EXISTS deliveries (
    idx INTEGER PRIMARY KEY,
    rows INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    xxh3 TEXT NOT NULL,
    host TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    stored TEXT NOT NULL,
    disk_bytes INTEGER NOT NULL,
    durable INTEGER NOT NULL,
    delivered_at REAL NOT NULL
)
"""
_FIELDS = ("index", "rows", "size_bytes", "xxh3", "host", "epoch", "stored", "disk_bytes", "durable", "delivered_at")
_COLUMNS = ", ".join(("idx", *_FIELDS[1:]))
_BUSY_SECONDS = 30.0
FOREIGN_SECONDS = 120.0
"""The deadline for reading a foreign ledger, in seconds; a million rows take three."""
_STEPS = 100_000
"""Steps of SQLite's virtual machine between two looks at the clock."""
_REMEDY = "Move the ledger away and pull again: files whose digests are right are kept and listed again."


class DestinationLedger:
    """One connection, for any thread of the pulling process. A context manager. All methods raise HostError."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        """Open the ledger, creating it if it is missing; without `durable` nothing is fsynced."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
            self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
            self._db.execute(_SCHEMA)
            _check_table(self._db, path)
        except sqlite3.DatabaseError as error:
            raise HostError(
                f"The destination's ledger {path} could not be opened: {error}.",
                remedy=_REMEDY,
            ) from error

    def __enter__(self) -> DestinationLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def record(self, rows: Iterable[DeliveredRow]) -> None:
        """Commit deliveries, replacing earlier rows of the same index."""
        values = [[getattr(row, name) for name in _FIELDS] for row in rows]
        statement = f"INSERT OR REPLACE INTO deliveries ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?)"  # noqa: S608
        with self._held() as db, db:
            db.executemany(statement, values)

    def find(self, index: int) -> DeliveredRow | None:
        """Return the delivery of one record, or None."""
        found = self._asked(f"SELECT {_COLUMNS} FROM deliveries WHERE idx = ?", index)  # noqa: S608
        return _row(found[0], self._path) if found else None

    def rows(self) -> Iterator[DeliveredRow]:
        """Yield all deliveries in order of their indices; locks the ledger until the last one is read."""
        query = f"SELECT {_COLUMNS} FROM deliveries ORDER BY idx"  # noqa: S608
        with self._held() as db, closing(db.execute(query)) as found:
            for values in found:
                yield _row(values, self._path)

    def indices(self) -> list[int]:
        """Return the indices of all delivered records, in order."""
        return [index for (index,) in self._asked("SELECT idx FROM deliveries ORDER BY idx")]

    def forget(self, indices: Iterable[int]) -> int:
        """Delete rows, so that their records are pulled again; returns how many there were."""
        with self._held() as db, db:
            deleted = [db.execute("DELETE FROM deliveries WHERE idx = ?", (i,)).rowcount for i in indices]
        return sum(deleted)

    def totals(self) -> tuple[int, int, int]:
        """Return how many records were delivered, their tokens and their (uncompressed) bytes."""
        query = "SELECT COUNT(*), COALESCE(SUM(rows), 0), COALESCE(SUM(size_bytes), 0) FROM deliveries"
        ((records, tokens, size),) = self._asked(query)
        return records, tokens, size

    def by_host(self) -> dict[str, int]:
        """Return how many records came from each host."""
        return dict(self._asked("SELECT host, COUNT(*) FROM deliveries GROUP BY host ORDER BY host"))

    def _asked(self, query: str, *values: object) -> list[Any]:
        with self._held() as db:
            return db.execute(query, values).fetchall()

    @contextmanager
    def _held(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection, locked for the block; raises HostError for errors of SQLite, such as a full disk."""
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise HostError(
                    f"The destination's ledger {self._path} could not be read or written: {error}.",
                    remedy="Make room on its disk, or end the program that locks it, and pull again.",
                ) from error


def foreign_rows(path: Path) -> Iterator[DeliveredRow]:
    """Yield the rows of a ledger from a bucket. Anyone who can write to the bucket may have written the file.

    It is opened read-only, must have a real table, and must be read within FOREIGN_SECONDS; else HostError is raised.
    """
    ends = time.monotonic() + FOREIGN_SECONDS
    query = f"SELECT {_COLUMNS} FROM deliveries ORDER BY idx"  # noqa: S608
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
            db.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)
            db.execute("PRAGMA trusted_schema=OFF")
            _check_table(db, path)
            for values in db.execute(query):
                yield _row(values, path)
    except sqlite3.Error as error:
        took = f"it was not read to its end within {FOREIGN_SECONDS:.0f} s" if time.monotonic() > ends else str(error)
        raise HostError(f"The ledger in the destination cannot be read: {took}.", remedy=_REMEDY) from error


def _check_table(db: sqlite3.Connection, path: Path) -> None:
    """Raise HostError if `deliveries` is no table: a view could be endless, and a virtual table runs other code."""
    found = db.execute("SELECT type, sql FROM sqlite_master WHERE name = 'deliveries'").fetchone()
    if found is None or found[0] != "table" or not str(found[1]).upper().startswith("CREATE TABLE"):
        raise HostError(f"{path} is not a ledger of Roost's: its `deliveries` is not a table.", remedy=_REMEDY)


def _row(values: tuple[object, ...], path: Path) -> DeliveredRow:
    try:
        return DeliveredRow.model_validate(dict(zip(_FIELDS, values, strict=True)))
    except ValidationError as error:
        raise HostError(
            f"{path} has a row that Roost did not write (record {values[0]!r:.40}, {first_problem(error)}).",
            remedy=_REMEDY,
        ) from error
