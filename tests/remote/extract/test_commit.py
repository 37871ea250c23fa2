"""An error of a commit reaches every caller that waits for the commit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from remote.shared.errors import HostError
from remote.work import commit
from remote.work.commit import Committer
from remote.work.ledger import Ledger, Row

ROW = Row(1, "done", 8, 1)


async def commit_and_close(ledger: Path, *dumps: Path) -> None:
    committer = Committer(ledger, "`inv extract` resumes.")
    try:
        await asyncio.wait_for(committer.commit(ROW, dumps), 30)
    finally:
        committer.close()


def test_a_row_is_committed_before_its_dump_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = tmp_path / "dump"
    dump.touch()
    record = Ledger.record

    def recorded(ledger: Ledger, rows: list[Row]) -> None:
        assert dump.exists()
        record(ledger, rows)

    monkeypatch.setattr(Ledger, "record", recorded)
    asyncio.run(commit_and_close(tmp_path / "ledger.sqlite", dump))
    assert not dump.exists()
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert set(ledger.states()) == {1}


def test_a_ledger_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(b"not a database, and long enough to be looked at as one" * 20)
    with pytest.raises(HostError, match="could not be opened"):
        asyncio.run(commit_and_close(tmp_path / "ledger.sqlite"))


def test_a_dump_that_cannot_be_removed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    with pytest.raises(HostError, match="could not be written to the ledger: "):
        asyncio.run(commit_and_close(tmp_path / "ledger.sqlite", tmp_path / "dump"))


def test_an_unforeseen_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Ledger):
        def record(self, rows: object) -> None:
            raise ValueError("could not convert string to float: ''")

    monkeypatch.setattr(commit, "Ledger", Broken)
    with pytest.raises(HostError, match="ValueError: could not convert"):
        asyncio.run(commit_and_close(tmp_path / "ledger.sqlite"))
