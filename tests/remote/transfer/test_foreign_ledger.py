"""A ledger that somebody else wrote into a bucket: a table with Roost's rows, or one sentence and an end."""

from __future__ import annotations

import contextlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.shared.errors import HostError
from remote.shared.transfer import ledger
from remote.shared.transfer.ledger import DestinationLedger, foreign_rows
from tests.hostile import examples

COLUMNS = "idx, rows, size_bytes, xxh3, host, epoch, stored, disk_bytes, durable, delivered_at"
GOOD = (
    "x AS idx, 1 AS rows, 1 AS size_bytes, '' AS xxh3, 'h' AS host, 1 AS epoch, 'plain' AS stored, "
    "1 AS disk_bytes, 1 AS durable, 0.0 AS delivered_at"
)
ENDLESS = f"WITH RECURSIVE c(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM c) SELECT {GOOD} FROM c"


def made(path: Path, *statements: str) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)
    return path


def test_an_endless_view_is_no_table(tmp_path: Path) -> None:
    path = made(tmp_path / "l", f"CREATE VIEW deliveries AS {ENDLESS}")
    with pytest.raises(HostError, match="its `deliveries` is not a table"):
        next(foreign_rows(path))
    with pytest.raises(HostError, match="its `deliveries` is not a table"):
        DestinationLedger(path)


def test_a_virtual_table_is_no_table(tmp_path: Path) -> None:
    path = made(tmp_path / "l", f"CREATE VIRTUAL TABLE deliveries USING fts5({COLUMNS})")
    with pytest.raises(HostError, match="its `deliveries` is not a table"):
        next(foreign_rows(path))


def test_reading_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "FOREIGN_SECONDS", 0.0)
    bounded = ENDLESS.replace("FROM c)", "FROM c WHERE x < 200000)")
    path = made(tmp_path / "l", f"CREATE TABLE deliveries AS {bounded}")
    with pytest.raises(HostError, match="was not read to its end within 0 s"):
        list(foreign_rows(path))


cells = st.one_of(
    st.none(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5)
)


@examples(60)
@given(st.lists(st.tuples(*[cells] * 10), max_size=3))
def test_rows_of_any_kind_are_read_or_refused(tmp_path: Path, rows: list[tuple[object, ...]]) -> None:
    path = made(tmp_path / "l", f"CREATE TABLE deliveries ({COLUMNS})")
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany(f"INSERT INTO deliveries VALUES ({', '.join('?' * 10)})", rows)
    with contextlib.suppress(HostError):
        assert all(row.xxh3 is not None for row in foreign_rows(path))


@examples(40)
@given(st.binary(max_size=300), st.booleans())
def test_bytes_of_any_kind_are_read_or_refused(tmp_path: Path, content: bytes, sqlite: bool) -> None:
    path = tmp_path / "l"
    path.write_bytes((b"SQLite format 3\0" if sqlite else b"") + content)
    with pytest.raises(HostError):
        list(foreign_rows(path))
