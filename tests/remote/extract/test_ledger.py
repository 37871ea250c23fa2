"""A ledger commits whole batches durably, and one sentence says why it cannot be opened or written."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from remote.shared.errors import HostError
from remote.work.ledger import Ledger, Row


def test_a_batch_is_in_the_ledger_whole_or_not_at_all(tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        yield Row(1, "done", 8, 1)
        raise RuntimeError("the process ended here")

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(RuntimeError):
            ledger.record(rows())
        assert ledger.states() == {}
        ledger.record([Row(1, "done", 8, 1), Row(2, "quarantined", 8, 1, cause="bad")])
        ledger.record([Row(2, "done", 8, 1, size_bytes=5)])
        assert {index: state for index, (state, _, _) in ledger.states().items()} == {1: "done", 2: "done"}


def test_commits_survive_a_power_cut(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        db = ledger._db
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert (tmp_path / "ledger.sqlite").stat().st_mode & 0o077 == 0


def test_a_ledger_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(HostError, match="schema 99 of a newer Roost"):
        Ledger(path)


def test_a_damaged_ledger_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"not a database, and long enough to be looked at as one" * 20)
    with pytest.raises(HostError, match="could not be opened"):
        Ledger(path)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow; SQLite meets what a full disk does, if by another errno."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_on_a_full_disk_a_ledger_can_be_read_and_a_change_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.record([Row(1, "done", 8, 1, size_bytes=5)])
    assert not path.with_name("ledger.sqlite-wal").exists()
    with full_disk(), Ledger(path, to_read=True) as ledger:
        assert ledger.counts().done == 1
    with full_disk(), pytest.raises(HostError, match=r"could not be written: .*full, read-only or failing"):
        Ledger(path)
    with Ledger(path) as ledger:
        with full_disk(), pytest.raises(HostError, match="could not be written"):
            ledger.record([Row(2, "done", 8, 1, size_bytes=5)])
        assert set(ledger.states()) == {1}


def test_on_a_full_disk_rows_that_a_killed_extractor_left_in_the_wal_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    program = "import os, sys; from pathlib import Path; from remote.work.ledger import Ledger, Row\n"
    program += "Ledger(Path(sys.argv[1])).record([Row(1, 'done', 8, 1, size_bytes=5)]); os._exit(0)"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert path.with_name("ledger.sqlite-wal").stat().st_size
    with full_disk(), Ledger(path, to_read=True) as ledger:
        assert ledger.counts().done == 1
