"""A part of the extractor that fails in a way nobody foresaw ends the run, or its record, with the cause."""

from __future__ import annotations

import errno
import io
import sqlite3
import time
from pathlib import Path

import pytest

from remote.context import Context
from remote.extract import attempt
from remote.extract.leftovers import Leftovers
from remote.extract.parity import Parity
from remote.extract.watch import Watch
from remote.report import Report
from remote.shared.errors import HostError
from remote.shared.messages.extract import Counts, Delivered, FreedRequest, RunRequest
from remote.work import disk, ledger, verbs
from remote.work.client import Client
from remote.work.conditions import Conditions
from remote.work.endpoint import Endpoint
from remote.work.ledger import Ledger, Row
from remote.work.progress import Progress
from tests.remote.extract.conftest import RUN, Host, identity

pytestmark = pytest.mark.timeout(120)


def test_attempts_that_always_meet_an_error_in_roost_end_the_run(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: object) -> None:
        raise KeyError("lm_head.weight_scale_inv")

    monkeypatch.setattr(Parity, "_check", check)
    host.serve()
    host.assign([16] * 3, parity_rate=1.0, max_consecutive_failures=5)
    with pytest.raises(HostError, match=r"5 consecutive attempts failed.*KeyError: 'lm_head\.weight_scale_inv'"):
        host.extract()


def test_a_single_record_that_meets_an_error_in_roost_is_quarantined(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = attempt._store_parts

    def broken(found: object, shard: Path, *rest: object) -> object:
        if shard.name == "hs_2.safetensors":
            raise ZeroDivisionError("float division by zero")
        return stored(found, shard, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(attempt, "_store_parts", broken)
    host.serve()
    host.assign([16] * 6)
    state = host.extract()
    assert (state.counts.done, state.counts.quarantined) == (5, 1)
    (cause,) = host.causes()
    assert "ZeroDivisionError: float division by zero" in cause


def test_a_ledger_that_fails_while_a_run_ends_hides_neither_cause(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(*_: object) -> int:
        raise HostError("The ledger could not be written: disk I/O error.")

    host.serve(faults={str(index): ["error"] for index in range(4)})
    host.assign([16] * 4, max_consecutive_failures=3)
    opened = verbs.status(RunRequest(run=RUN), host.context)
    assert opened.state.counts.done == 0
    monkeypatch.setattr("remote.work.judgement.Ledger.forget", forget)
    monkeypatch.setattr("remote.work.session.reconcile", lambda *_: None)
    with pytest.raises(HostError, match=r"3 consecutive attempts failed.*A row never came.*disk I/O error"):
        host.extract()


def test_a_watch_that_dies_ends_the_run_with_its_cause(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_: Watch) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(Watch, "run", run)
    host.serve()
    host.assign([16] * 3)
    with pytest.raises(HostError, match=r"in Roost itself and ended: RuntimeError: dictionary changed size"):
        host.extract()
    told = verbs.status(RunRequest(run=RUN), host.context)
    assert (told.state.status, "dictionary changed size" in told.state.cause) == ("failed", True)


def test_a_full_disk_is_not_waited_for_by_a_run_that_has_to_end(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    full: list[int] = []

    def broken(_found: object, shard: Path, *_: object) -> object:
        if shard.name == "hs_0.safetensors":
            full.append(0)
            raise OSError(errno.ENOSPC, "No space left on device")
        while not full:
            time.sleep(0.01)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(attempt, "_store_parts", broken)
    monkeypatch.setattr(disk, "DISK_POLL_SECONDS", 0.05)
    monkeypatch.setattr(Conditions, "free_bytes", lambda _: 0 if full else 1 << 40)
    host.serve()
    host.assign([16] * 2)
    with pytest.raises(HostError, match="Input/output error"):
        host.extract()


def test_other_files_in_the_folder_of_runs_end_no_extractor(host: Host) -> None:
    host.serve()
    host.assign([16] * 3)
    (host.workdir.runs / "notes.txt").write_text("a person's")
    (host.workdir.runs / "not a run").mkdir()
    assert host.extract().counts.done == 3
    assert Leftovers(host.workdir, host.paths, set(), "").sweep(host.dump_dir, set()) == 0
    assert verbs.status(RunRequest(), host.context).run == RUN


def test_a_wait_for_room_is_counted_by_the_clock_and_not_by_checks(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "state.json", RUN, 1, Counts())
    began = time.monotonic()
    while time.monotonic() - began < 0.3:
        progress.wait_for_room(True)
    progress.wait_for_room(False)
    progress.wait_for_room(False)
    assert 0.25 < progress.state.backpressure_seconds <= time.monotonic() - began
    progress.close()


def test_a_ledger_in_use_by_another_command_is_not_called_a_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_BUSY_SECONDS", 0.1)
    with Ledger(tmp_path / "ledger.sqlite") as mine:
        other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HostError, match=r"was in use by another command for 0 s\. Try again"):
            mine.record([Row(1, "done", 8, 1)])
        other.close()


def test_the_extractor_may_write_while_delivered_shards_are_deleted(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.serve()
    host.assign([16] * 4)
    host.extract()
    with Ledger(host.paths.ledger) as opened:
        rows = [Delivered(index=row.index, xxh3=row.xxh3) for _, row in opened.shards()]
    deleted: list[Path] = []
    delete = verbs._delete

    def watched(path: Path) -> int:
        with Ledger(host.paths.ledger) as opened:
            opened.note({"written meanwhile": path.name})
        deleted.append(path)
        return delete(path)

    monkeypatch.setattr(ledger, "_BUSY_SECONDS", 0.1)
    monkeypatch.setattr(verbs, "_delete", watched)
    result = verbs.freed(FreedRequest(identity=identity(), records=rows), Context(host.workdir, Report(io.StringIO())))
    assert (result.records, len(deleted)) == (4, 4)
    assert result.freed_bytes > 0
    assert list(host.paths.shards.iterdir()) == []


def test_a_restarted_server_is_always_checked(host: Host) -> None:
    server = host.serve()
    endpoint = Endpoint(host.workdir.server("main"), 100)
    endpoint.refresh()
    assert endpoint.is_new
    endpoint.welcome(Client(None, server.port, {}, 1.0))  # type: ignore[arg-type]
    assert endpoint.admits(10)
    server.kill()
    endpoint.refresh()
    server.restart()
    endpoint.refresh()  # as a failed try does, before the dispatcher looks
    endpoint.refresh()
    assert endpoint.is_new
    assert not endpoint.admits(10)
