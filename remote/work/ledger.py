"""A run's ledger: the records that are finished on this host, with their digests. The only owner of its schema.

Runs on the host. The extractor writes it; the verbs `status`, `shards`, `requeue`, `reopen` and `freed` read it and
change single rows, from other processes and at any time. A row is committed after its shard is durable, never before.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from remote.shared.errors import HostError
from remote.shared.files import FILE_MODE, make_directory
from remote.shared.messages.extract import Counts, ShardRow

State = Literal["done", "quarantined", "freed"]
Stored = Literal["plain", "compressed"]

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of finishing; a record done again gets a new one
    idx INTEGER NOT NULL UNIQUE,
    state TEXT NOT NULL CHECK (state IN ('done', 'quarantined', 'freed')),
    rows INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL DEFAULT 0,
    xxh3 TEXT NOT NULL DEFAULT '',
    epoch INTEGER NOT NULL,
    stored TEXT NOT NULL DEFAULT 'plain',
    mean_norm TEXT,      -- JSON list, one number a slot
    max_norm TEXT,
    parity TEXT,         -- JSON, what the comparison with the server's own logprobs measured
    flag TEXT,           -- why a kept record deserves a look
    cause TEXT,          -- why a quarantined record is not done
    attempts INTEGER NOT NULL DEFAULT 1,
    finished_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (nonce TEXT PRIMARY KEY, started_at REAL NOT NULL);
"""
_REOPENED = """
CREATE TABLE IF NOT EXISTS reopened (idx INTEGER, cause TEXT, attempts INTEGER, quarantined_at REAL, reopened_at REAL)
"""
"""Created when it is first needed. Older ledgers lack this table, and an older Roost ignores it."""
_TOLD = "CREATE TABLE IF NOT EXISTS told (idx INTEGER PRIMARY KEY, what TEXT NOT NULL)"
"""Created when it is first needed, like `_REOPENED`."""
_BUSY_SECONDS = 30.0
_EVERYTHING = "records"
_IN_RANGES = (
    "(SELECT json_extract(value, '$[0]') AS start, json_extract(value, '$[1]') AS stop FROM json_each(?))"
    " CROSS JOIN records ON idx >= start AND idx < stop"
)
"""CROSS JOIN makes SQLite look up each range in the index, instead of reading all records once for every range."""
_CHUNK = 500
"""Indices in one statement. SQLite's default limit on parameters is 999 in old builds."""


@dataclass(frozen=True)
class Row:
    """A finished record, as the extractor gives it to the ledger."""

    index: int
    state: State
    rows: int
    epoch: int
    size_bytes: int = 0
    xxh3: str = ""
    stored: Stored = "plain"
    mean_norm: Sequence[float] = ()
    max_norm: Sequence[float] = ()
    parity: dict[str, Any] = field(default_factory=dict)
    flag: str = ""
    cause: str = ""
    attempts: int = 1
    told: str = ""
    """JSON that a kind of work keeps for each record; "" for none."""


class Ledger:
    """One connection to `ledger.sqlite`, for the thread that opened it. A context manager."""

    def __init__(self, path: Path, *, to_read: bool = False) -> None:
        """Open the ledger, or create it (0600). With `to_read`, a ledger that cannot be written is opened too."""
        self._path = path
        try:
            self._db = _opened(path)
        except (OSError, sqlite3.DatabaseError) as error:
            reader = _opened_to_read(path) if to_read and _is_of_the_disk(error) else None
            if reader is None:
                raise self._failed(error) from error
            self._db = reader

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def copy_to(self, path: Path) -> None:
        """Write a whole copy of the ledger as it is now to a new file (0600)."""
        path.touch(mode=FILE_MODE, exist_ok=False)
        with closing(sqlite3.connect(path, isolation_level=None)) as target:
            self._db.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")  # one file, which can be copied as it is

    def record(self, rows: Iterable[Row]) -> None:
        """Commit a batch of finished records, replacing earlier rows of the same index."""
        rows, now = list(rows), time.time()
        told = [(row.index, row.told) for row in rows if row.told]
        with self._transaction():
            if told:
                self._db.execute(_TOLD)
                self._db.executemany("INSERT OR REPLACE INTO told VALUES (?, ?)", told)
            self._db.executemany(
                "INSERT OR REPLACE INTO records (idx, state, rows, size_bytes, xxh3, epoch, stored, mean_norm,"
                " max_norm, parity, flag, cause, attempts, finished_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                [_values(row, now) for row in rows],
            )

    def rows(self, indices: Iterable[int]) -> list[Row]:
        """Return the rows of these records, without records that have no row."""
        query = (
            "SELECT idx, state, rows, epoch, size_bytes, xxh3, stored, mean_norm, max_norm, parity, flag, cause,"
            " attempts FROM records WHERE idx = ?"
        )
        found = (self._db.execute(query, (index,)).fetchone() for index in indices)
        return [_row(values) for values in found if values is not None]

    def states(self) -> dict[int, tuple[State, int, str]]:
        """Return every recorded index with its state, its size in bytes and the form in which it is stored."""
        rows = self._db.execute("SELECT idx, state, size_bytes, stored FROM records")
        return {index: (state, size, stored) for index, state, size, stored in rows}

    def shards(
        self, after: int = 0, limit: int | None = None, *, freed: bool = False
    ) -> Iterator[tuple[int, ShardRow]]:
        """Yield (cursor, row) of finished records that are on disk, or with `freed` were, oldest first."""
        query = (
            "SELECT seq, idx, rows, size_bytes, xxh3, epoch, stored FROM records"
            " WHERE seq > ? AND state IN ('done', ?) ORDER BY seq LIMIT ?"
        )
        given = (after, "freed" if freed else "done", -1 if limit is None else limit)
        with closing(self._db.execute(query, given)) as found:
            for seq, index, rows, size, digest, epoch, stored in found:
                yield (
                    seq,
                    ShardRow(index=index, rows=rows, size_bytes=size, xxh3=digest, epoch=epoch, stored=stored),
                )

    def counts(self, ranges: list[tuple[int, int]] | None = None) -> Counts:
        """Return the counts of finished records; only of the indices in `ranges`, if they are given.

        The fields on assigned records stay 0, because the ledger does not know them.
        """
        counts = Counts()
        source, values = (_EVERYTHING, ()) if ranges is None else (_IN_RANGES, (json.dumps(ranges),))
        query = f"SELECT state, COUNT(*), SUM(rows), SUM(size_bytes) FROM {source} GROUP BY state"  # noqa: S608
        for state, records, rows, size in self._db.execute(query, values):
            setattr(counts, state, records)
            if state == "quarantined":
                counts.tokens_quarantined = rows
            else:
                counts.tokens_done += rows
                counts.bytes_done += size
        if ranges is not None:
            query = "SELECT COUNT(*) FROM records WHERE state != 'quarantined'"
            counts.beyond = self._db.execute(query).fetchone()[0] - counts.done - counts.freed
        return counts

    def tokens_by_minute(self) -> list[int]:
        """Return the tokens that were finished in each minute of work, without the first and the last minute.

        A minute without a finished record does not count, because the run was paused, stopped or waiting.
        """
        query = (
            "SELECT SUM(rows) FROM records WHERE state != 'quarantined'"
            " GROUP BY CAST(finished_at / 60 AS INTEGER) ORDER BY CAST(finished_at / 60 AS INTEGER)"
        )
        return [tokens for (tokens,) in self._db.execute(query)][1:-1]

    def causes(self) -> dict[str, int]:
        """Return the causes of the quarantined records with their counts."""
        query = "SELECT cause, COUNT(*) FROM records WHERE state = 'quarantined' GROUP BY cause ORDER BY 2 DESC"
        return dict(self._db.execute(query).fetchall())

    def quarantined(self) -> dict[int, str]:
        """Return the indices of the quarantined records with their causes."""
        return dict(self._db.execute("SELECT idx, cause FROM records WHERE state = 'quarantined'").fetchall())

    def told(self) -> Iterator[str]:
        """Return the JSON that was kept for each finished record, in order of finishing."""
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'told'").fetchone() is None:
            return
        query = "SELECT what FROM told JOIN records USING (idx) WHERE state != 'quarantined' ORDER BY seq"
        for (what,) in self._db.execute(query):
            yield what

    def parity_checked(self) -> int:
        """Return how many records agreed with the server's own logprobs."""
        (count,) = self._db.execute("SELECT COUNT(*) FROM records WHERE parity IS NOT NULL").fetchone()
        return int(count)

    def flagged(self) -> int:
        """Return how many finished records have a flag."""
        (count,) = self._db.execute("SELECT COUNT(*) FROM records WHERE flag IS NOT NULL").fetchone()
        return int(count)

    def norms(self, every: int = 1) -> Iterator[tuple[list[float], list[float]]]:
        """Yield mean and maximum norm of each slot, for every `every`th record that is done, in order of finishing."""
        query = "SELECT mean_norm, max_norm FROM records WHERE state != 'quarantined' AND mean_norm IS NOT NULL"
        for mean, largest in self._db.execute(query + " AND seq % ? = 0 ORDER BY seq", (every,)):
            yield json.loads(mean), json.loads(largest)

    def lengths(self) -> list[int]:
        """Return the tokens of every record that is done, here or delivered."""
        return [rows for (rows,) in self._db.execute("SELECT rows FROM records WHERE state != 'quarantined'")]

    def parity(self) -> list[dict[str, Any]]:
        """Return the measurements of each comparison with the server's own logprobs."""
        return [json.loads(text) for (text,) in self._db.execute("SELECT parity FROM records WHERE parity IS NOT NULL")]

    def pace(self) -> tuple[float, float, int]:
        """Return when the first and last record were finished, and how many took several attempts; or zeros."""
        query = "SELECT MIN(finished_at), MAX(finished_at), SUM(attempts > 1) FROM records WHERE state != 'quarantined'"
        first, last, retried = self._db.execute(query).fetchone()
        return first or 0.0, last or 0.0, retried or 0

    def forget(self, indices: Iterable[int]) -> int:
        """Delete rows, so that their records are open again; return the number of deleted rows."""
        return self._change(indices, "DELETE FROM records WHERE idx IN ({marks})")

    def reopen(self, indices: Iterable[int]) -> int:
        """Open those of the records that are quarantined, and keep the causes; return the number of opened records."""
        self._db.execute(_REOPENED)
        which = "FROM records WHERE state = 'quarantined' AND idx IN ({marks})"
        kept = f"INSERT INTO reopened SELECT idx, cause, attempts, finished_at, {time.time()} {which}"
        return self._change(indices, kept, f"DELETE {which}")

    def free(self, records: Iterable[tuple[int, str]]) -> int:
        """Mark finished records (index, digest) as delivered and deleted here; return how many were `done`.

        A record that was made again meanwhile, and so has another digest, is not marked.
        """
        query = "UPDATE records SET state = 'freed' WHERE state = 'done' AND idx = ? AND xxh3 = ?"
        with self._transaction():
            return sum(self._db.execute(query, record).rowcount for record in records)

    @contextmanager
    def held_freed(self, records: Iterable[tuple[int, str]]) -> Iterator[list[int]]:
        """Yield the indices of the records that are marked as freed. No process changes the ledger during the block.

        The extractor waits meanwhile, so the block must be short: rename files inside it, and delete them after it.
        """
        query = "SELECT idx FROM records WHERE state = 'freed' AND idx = ? AND xxh3 = ?"
        with self._transaction():
            yield [index for record in records for (index,) in self._db.execute(query, record)]

    def has(self, index: int, xxh3: str) -> bool:
        """Return whether the record with this digest is finished and on disk."""
        query = "SELECT 1 FROM records WHERE state = 'done' AND idx = ? AND xxh3 = ?"
        return self._db.execute(query, (index, xxh3)).fetchone() is not None

    def mark_stored(self, index: int, xxh3: str, stored: Stored) -> bool:
        """Note that a shard is now stored in another form. Digest and size remain those of the plain bytes.

        Return False, and note nothing, if the record with this digest is no longer on disk.
        """
        query = "UPDATE records SET stored = ? WHERE state = 'done' AND idx = ? AND xxh3 = ?"
        with self._transaction():
            return self._db.execute(query, (stored, index, xxh3)).rowcount == 1

    def fact(self, name: str) -> str | None:
        """Return a fact that an earlier session noted of the run, or None."""
        found = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return found[0] if found else None

    def facts(self) -> dict[str, str]:
        """Return all facts of the run."""
        return dict(self._db.execute("SELECT name, value FROM facts").fetchall())

    def note(self, facts: dict[str, str]) -> None:
        """Note facts of the run, and replace earlier values."""
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())

    def begin_session(self, nonce: str) -> None:
        """Note a session's nonce before its first request, so that its leftover files can be recognised."""
        with self._transaction():
            self._db.execute("INSERT INTO sessions VALUES (?, ?)", (nonce, time.time()))

    def nonces(self) -> set[str]:
        """Return the nonces of all sessions of this run."""
        return {nonce for (nonce,) in self._db.execute("SELECT nonce FROM sessions")}

    def _failed(self, error: OSError | sqlite3.DatabaseError) -> HostError:
        if _is_busy(error):
            return HostError(
                f"The ledger {self._path} was in use by another command for {_BUSY_SECONDS:.0f} s.",
                remedy="Try again. If the error repeats, a command hangs: `inv status`, and `ps` on the host, show "
                "which command.",
            )
        if _is_of_the_disk(error):
            reason = error.strerror if isinstance(error, OSError) else error
            return HostError(
                f"The ledger {self._path} could not be written: {reason}.",
                remedy="The disk of the ledger is full, read-only or failing: repair it. The ledger was not changed.",
            )
        return HostError(
            f"The ledger {self._path} could not be opened: {error}.",
            remedy="Move the ledger away to start the run again; all of its records are then extracted again.",
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit the whole block or nothing; raises HostError if the disk fails."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError):
                raise self._failed(error) from error
            raise

    def _change(self, indices: Iterable[int], *statements: str) -> int:
        """Execute the statements on these indices, all or nothing; return how many rows the last one changed."""
        wanted = list(indices)
        changed = 0
        with self._transaction():
            for start in range(0, len(wanted), _CHUNK):
                chunk = wanted[start : start + _CHUNK]
                marks = ",".join("?" * len(chunk))
                counts = [self._db.execute(one.format(marks=marks), chunk).rowcount for one in statements]
                changed += counts[-1]
        return changed


def _opened(path: Path) -> sqlite3.Connection:
    make_directory(path.parent)
    path.touch(mode=FILE_MODE, exist_ok=True)
    db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        _prepare(db)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"it has schema {version} of a newer Roost, and this Roost knows {SCHEMA_VERSION}")
    if version == 0:
        db.executescript(_SCHEMA)
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def _opened_to_read(path: Path) -> sqlite3.Connection | None:
    """Open a ledger on a disk that is full or mounted read-only; return None if that is not possible.

    SQLite can read a WAL with an index that it may not write (https://www.sqlite.org/wal.html#readonly). If there is no
    index and SQLite cannot create one, no process has the ledger open for writing, and with an empty WAL the file alone
    is complete.
    """
    wal = path.with_name(path.name + "-wal")
    empty = not wal.exists() or wal.stat().st_size == 0
    for how in ("mode=ro&readonly_shm=1", *(["immutable=1"] if empty else [])):
        db = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None)
        try:
            db.execute("SELECT 1 FROM records LIMIT 1")
            return db
        except sqlite3.DatabaseError:
            db.close()
    return None


def _is_of_the_disk(error: Exception) -> bool:
    """Return whether the disk is at fault, and not the file's content or another command that has the file open."""
    return isinstance(error, OSError | sqlite3.OperationalError) and not _is_busy(error)


def _is_busy(error: Exception) -> bool:
    """Return whether another connection held the file for longer than `_BUSY_SECONDS` (SQLITE_BUSY, SQLITE_LOCKED)."""
    return isinstance(error, sqlite3.OperationalError) and "is locked" in str(error)


def _row(values: tuple[Any, ...]) -> Row:
    index, state, rows, epoch, size, digest, stored, mean, largest, parity, flag, cause, attempts = values
    return Row(
        index=index,
        state=state,
        rows=rows,
        epoch=epoch,
        size_bytes=size,
        xxh3=digest,
        stored=stored,
        mean_norm=json.loads(mean or "[]"),
        max_norm=json.loads(largest or "[]"),
        parity=json.loads(parity or "{}"),
        flag=flag or "",
        cause=cause or "",
        attempts=attempts,
    )


def _values(row: Row, now: float) -> tuple[object, ...]:
    return (
        row.index,
        row.state,
        row.rows,
        row.size_bytes,
        row.xxh3,
        row.epoch,
        row.stored,
        json.dumps(list(row.mean_norm)) if row.mean_norm else None,
        json.dumps(list(row.max_norm)) if row.max_norm else None,
        json.dumps(row.parity) if row.parity else None,
        row.flag or None,
        row.cause or None,
        row.attempts,
        now,
    )
