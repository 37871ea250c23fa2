"""A history's file: SQLite, written only by the recorder, and read by any process at any time.

A point is one row: a JSON list of values, in the order of the table `names`. The file stays below `MOST_BYTES`, because
old points are merged and only the newest `MOST_EVENTS` events are kept.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from remote.history.thinning import COARSE_SECONDS, LEVELS, in_buckets, merged
from remote.shared.errors import HostError
from remote.shared.files import FILE_MODE, make_directory, open_own
from remote.shared.messages.history import Event, Point

SCHEMA_VERSION = 1
MOST_BYTES = 4 << 20
MOST_EVENTS = 1_000
MOST_TEXT = 400
"""Characters of an event's text."""
MOST_SERIES = 2_000
_BUSY_SECONDS = 5.0
_SCHEMA = """
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE points (at REAL NOT NULL, step REAL NOT NULL, vals TEXT NOT NULL);
CREATE INDEX points_by_step ON points (step, at);
CREATE TABLE events (at REAL NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, text TEXT NOT NULL);
"""
SET_ASIDE = ".set-aside"


class HistoryError(HostError):
    """A history that cannot be read: missing, damaged, or of a later version."""

    kind = "history"


class Store:
    """An open history. Use it from the thread that opened it; a context manager."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path, self._db = path, db
        self._names: dict[str, int] = dict(db.execute("SELECT name, id FROM names"))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def add(self, points: Sequence[Point], events: Sequence[Event], now: float) -> None:
        """Append points and events, merge points that are old by `now`, and limit the file's size; all or nothing.

        Raises HistoryError if the disk is full or fails; the caller adds the same points again later.
        """
        with self._transaction():
            for point in points:
                self._insert(point)
            self._db.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?)",
                [(event.at, event.kind, event.subject, event.text[:MOST_TEXT]) for event in events],
            )
            if events:
                oldest = "SELECT rowid FROM events ORDER BY rowid DESC LIMIT ?"
                self._db.execute(f"DELETE FROM events WHERE rowid NOT IN ({oldest})", (MOST_EVENTS,))  # noqa: S608
            for age, below, step in LEVELS:
                self._thin(now - age, below, step)
            if self._used_bytes() > MOST_BYTES:
                self._halve()

    def points(self, since: float = 0.0, series: Sequence[str] = ()) -> Iterator[Point]:
        """Return points in order of time; only these series, if any are named."""
        rows = self._db.execute("SELECT at, step, vals FROM points WHERE at + step > ? ORDER BY at", (since,))
        with closing(rows):
            for at, step, text in rows:
                point = self._point(at, step, text)
                if series:
                    point.values = {name: point.values[name] for name in series if name in point.values}
                yield point

    def last(self) -> Point | None:
        """Return the newest point."""
        row = self._db.execute("SELECT at, step, vals FROM points ORDER BY at DESC LIMIT 1").fetchone()
        return None if row is None else self._point(*row)

    def events(self, newest: int = MOST_EVENTS) -> list[Event]:
        """Return the newest events, the oldest of them first."""
        rows = self._db.execute(
            "SELECT at, kind, subject, text FROM events ORDER BY rowid DESC LIMIT ?", (newest,)
        ).fetchall()
        return [Event(at=at, kind=kind, subject=subject, text=text) for at, kind, subject, text in reversed(rows)]

    def _insert(self, point: Point) -> None:
        values: list[float | None] = []
        for name, value in point.values.items():
            number = self._number(name)
            if number is None or not math.isfinite(value):
                continue
            values += [None] * (number + 1 - len(values))
            values[number] = _short(value)
        text = json.dumps(values, separators=(",", ":"))
        self._db.execute("INSERT INTO points VALUES (?, ?, ?)", (round(point.at, 1), point.step, text))

    def _number(self, name: str) -> int | None:
        """Return the place of a series in a row; None if this history already has too many series."""
        if name not in self._names:
            if len(self._names) >= MOST_SERIES:
                return None
            number = len(self._names)
            self._db.execute("INSERT INTO names VALUES (?, ?)", (number, name))
            self._names[name] = number
        return self._names[name]

    def _point(self, at: float, step: float, text: str) -> Point:
        values = json.loads(text)
        found = {name: values[place] for name, place in self._names.items() if place < len(values)}
        return Point(at=at, step=step, values={name: value for name, value in found.items() if value is not None})

    def _thin(self, before: float, below: float, step: float) -> None:
        """Merge points of up to `below` seconds into points of `step` seconds that end before `before`."""
        rows = self._db.execute(
            "SELECT rowid, at, step, vals FROM points WHERE step <= ? AND at < ? ORDER BY at",
            (below, before // step * step),
        ).fetchall()
        self._replace([(row, self._point(at, length, text)) for row, at, length, text in rows], step)

    def _halve(self) -> None:
        """Merge, in pairs, the older half of the coarse points of the most frequent length."""
        commonest = "SELECT step FROM points WHERE step >= ? GROUP BY step ORDER BY COUNT(*) DESC LIMIT 1"
        rows = self._db.execute(
            f"SELECT rowid, at, step, vals FROM points WHERE step = ({commonest}) ORDER BY at",  # noqa: S608
            (COARSE_SECONDS,),
        ).fetchall()
        older = [(row, self._point(at, length, text)) for row, at, length, text in rows[: (len(rows) + 1) // 2]]
        if older:
            self._replace(older, 2 * older[0][1].step)

    def _replace(self, rows: Sequence[tuple[int, Point]], step: float) -> None:
        if not rows:
            return
        for bucket in in_buckets([point for _, point in rows], step):
            self._insert(merged(bucket, step))
        self._db.executemany("DELETE FROM points WHERE rowid = ?", [(row,) for row, _ in rows])

    def _used_bytes(self) -> int:
        (pages,), (free,), (size,) = (
            self._db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        before = dict(self._names)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            self._names = before
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise _told(self._path, error) from error
            raise


def to_write(path: Path) -> tuple[Store, str]:
    """Open a history for writing, or create it (0600). A history that is damaged or of a later version is set aside.

    Returns the store, and a sentence on the history that was set aside, or "". Raises HistoryError if the disk fails.
    """
    try:
        return Store(path, _opened(path)), ""
    except _UnfitError as error:
        aside = path.with_name(path.name + SET_ASIDE)
        path.replace(aside)
        path.with_name(path.name + "-journal").unlink(missing_ok=True)
        said = f"{error.message} It was set aside as {aside.name}, and a new history was begun."
        return Store(path, _opened(path)), said


def worked_seconds(path: Path) -> float | None:
    """Return for how many seconds a run has worked, by its history; None if no history can be read."""
    try:
        with to_read(path) as store:
            last = store.last()
    except HostError:
        return None
    return None if last is None else last.values.get("worked", 0.0)


def to_read(path: Path) -> Store:
    """Open a history for reading, even on a full or read-only disk; raises HistoryError if none can be read."""
    if not path.exists():
        raise HistoryError(
            f"There is no history at {path}.",
            remedy="The next `inv serve` or `inv extract` starts the recorder, which writes it.",
        )
    try:
        return Store(path, _connected(path, "mode=rw"))
    except sqlite3.Error:
        try:
            return Store(path, _connected(path, "mode=ro&immutable=1"))
        except sqlite3.Error as error:
            raise _told(path, error) from error


class _UnfitError(HistoryError):
    """The file exists, but this version cannot write it as a history."""


def _opened(path: Path) -> sqlite3.Connection:
    try:
        make_directory(path.parent)
        path.touch(mode=FILE_MODE, exist_ok=True)
        return _connected(path, "mode=rw", begin=True)
    except (OSError, sqlite3.Error) as error:
        raise _told(path, error) from error


def _connected(path: Path, how: str, *, begin: bool = False) -> sqlite3.Connection:
    os.close(open_own(path))
    db = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise _UnfitError(
                f"The history {path} has version {version}, but this Roost knows version {SCHEMA_VERSION}.",
                remedy="Use the newer Roost that wrote it.",
            )
        if version == 0 and begin:
            db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
        elif version == 0:
            raise HistoryError(f"The history {path} is still empty.", remedy="Look again in a few seconds.")
        db.execute("SELECT at, step, vals FROM points LIMIT 1")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA journal_mode=TRUNCATE")
    except BaseException:
        db.close()
        raise
    return db


def _told(path: Path, error: Exception) -> HistoryError:
    """Return the error: _UnfitError, after which the file is set aside, if its content is at fault."""
    if isinstance(error, HistoryError):
        return error
    at_fault = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
    if at_fault or "no such" in str(error):
        return _UnfitError(f"The history {path} is damaged ({error}).", remedy="The recorder sets it aside by itself.")
    reason = getattr(error, "strerror", None) or error
    return HistoryError(
        f"The history {path} could not be written or read: {reason}.",
        remedy="If its disk is full, read-only or failing, repair the disk; the recorder then continues by itself.",
    )


def _short(value: float) -> float:
    """Return the number with few digits, to save room."""
    return int(value) if value == int(value) or abs(value) >= 1000 else round(value, 3)
