"""What the ledger tells from outside, and the few ways to change it there."""

from __future__ import annotations

import io
import json
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from remote.context import Context
from remote.errors import HostError, UsageError
from remote.extract.ledger import Ledger, Row
from remote.extract.verbs import fence, freed, reopen, requeue, shards, status
from remote.messages.capture import CaptureStatus
from remote.messages.extract import (
    Delivered,
    FenceRequest,
    FreedRequest,
    IndicesRequest,
    ReopenRequest,
    RunRequest,
    ShardBatch,
    ShardsRequest,
    ShardsResult,
)
from remote.report import Report
from tests.remote.extract.conftest import RUN, Host

pytestmark = pytest.mark.processes


def rows_of(host: Host, **request: int) -> tuple[list[int], ShardsResult]:
    """Streamed indices and the result of the verb `shards`."""
    stream = io.StringIO()
    result = shards(ShardsRequest(run=RUN, **request), Context(host.workdir, Report(stream)))
    items = [json.loads(line) for line in stream.getvalue().splitlines()]
    batches = [ShardBatch.model_validate(item["value"]) for item in items if item["type"] == "item"]
    return [row.index for batch in batches for row in batch.rows], result


def delivered(host: Host, *indices: int) -> FreedRequest:
    """These records, as their host's ledger has them now."""
    with Ledger(host.paths.ledger) as ledger:
        rows = [row for _, row in ledger.shards() if row.index in indices]
    return FreedRequest(run=RUN, records=[Delivered(index=row.index, xxh3=row.xxh3) for row in rows])


@pytest.fixture
def done(host: Host) -> Host:
    """A host with ten finished records."""
    host.serve()
    host.assign([8] * 10)
    host.extract()
    return host


def test_shards_after_a_cursor_are_the_newer_ones_alone(done: Host) -> None:
    first, told = rows_of(done, limit=4)
    rest, end = rows_of(done, after=told.cursor)
    assert (len(first), len(rest), set(first + rest)) == (4, 6, set(range(10)))
    assert rows_of(done, after=end.cursor)[0] == []
    assert end.status == "complete"
    assert end.counts.done == 10


def test_a_record_that_is_done_again_is_told_again(done: Host) -> None:
    _, told = rows_of(done)
    assert requeue(IndicesRequest(run=RUN, indices=[3, 5, 99]), done.context).records == 2
    assert not done.paths.shard(3).exists()
    assert rows_of(done, after=told.cursor)[0] == []
    done.extract()
    assert sorted(rows_of(done, after=told.cursor)[0]) == [3, 5]
    assert done.paths.shard(3).exists()


def test_freed_records_are_gone_from_the_disk_and_never_done_again(done: Host) -> None:
    size = done.paths.shard(2).stat().st_size
    result = freed(delivered(done, 2, 4), done.context)
    assert (result.records, result.freed_bytes) == (2, 2 * size)
    assert sorted(rows_of(done)[0]) == [0, 1, 3, 5, 6, 7, 8, 9]
    counts = done.extract().counts
    assert (counts.done, counts.freed, counts.tokens_done) == (8, 2, 80)
    assert not done.paths.shard(2).exists()


def test_freeing_twice_or_what_is_not_done_changes_nothing(done: Host) -> None:
    wanted = delivered(done, 2)
    freed(wanted, done.context)
    wanted.records.append(Delivered(index=77, xxh3="0" * 32))
    again = freed(wanted, done.context)
    assert (again.records, again.freed_bytes) == (0, 0)


def test_a_record_that_was_made_anew_since_it_was_delivered_is_not_freed(done: Host) -> None:
    wanted = delivered(done, 2, 3)
    with Ledger(done.paths.ledger) as ledger:
        ledger.record([Row(2, "done", 8, 1, size_bytes=1, xxh3="0" * 32)])
    assert freed(wanted, done.context).records == 1
    assert (done.states()[2], done.states()[3]) == ("done", "freed")
    assert done.paths.shard(2).exists()
    assert not done.paths.shard(3).exists()


def test_a_fenced_host_has_nothing_left_to_do_and_keeps_what_it_has(done: Host) -> None:
    told = fence(FenceRequest(run=RUN, epoch=5), done.context)
    assert (told.state.counts.assigned, told.state.counts.done) == (0, 10)
    requeue(IndicesRequest(run=RUN, indices=[1]), done.context)
    assert done.extract().epoch == 5
    assert 1 not in done.states()


@pytest.fixture
def quarantined(host: Host) -> Host:
    """A host that did ten records except 3 and 5, whose dumps were not finite; its server is sound by now."""
    server = host.serve(faults={"3": ["nonfinite"], "5": ["nonfinite"]})
    host.assign([8] * 10, max_attempts=1)
    host.extract()
    server.set_faults({})
    return host


def test_quarantined_records_are_counted_by_a_dry_run_opened_by_name_or_all_and_done_then(quarantined: Host) -> None:
    (cause,) = quarantined.causes()
    told = reopen(ReopenRequest(run=RUN, dry_run=True), quarantined.context)
    assert (told.records, told.causes, len(quarantined.states())) == (2, {cause: 2}, 10)
    assert reopen(ReopenRequest(run=RUN, indices=[3, 4, 99]), quarantined.context).records == 1
    assert set(range(10)) - set(quarantined.states()) == {3}
    assert reopen(ReopenRequest(run=RUN), quarantined.context).records == 1
    assert quarantined.extract().counts.done == 10
    assert reopen(ReopenRequest(run=RUN), quarantined.context).records == 0


def test_why_a_record_was_quarantined_stays_in_the_ledger_when_it_is_opened_again(quarantined: Host) -> None:
    (cause,) = quarantined.causes()
    reopen(ReopenRequest(run=RUN, indices=[5]), quarantined.context)
    quarantined.extract()
    with sqlite3.connect(quarantined.paths.ledger) as db:
        assert db.execute("SELECT idx, cause, attempts FROM reopened").fetchall() == [(5, cause, 1)]
    assert quarantined.causes() == {cause: 1}


def test_a_run_that_has_not_begun_has_nothing_to_open_and_gets_no_ledger(host: Host) -> None:
    host.assign([8])
    assert reopen(ReopenRequest(run=RUN), host.context).records == 0
    assert not host.paths.ledger.exists()


def test_status_of_a_host_without_a_run_is_an_answer_and_an_unknown_run_a_usage_error(host: Host) -> None:
    assert status(RunRequest(), host.context).run == ""
    host.assign([8])
    told = status(RunRequest(), host.context)
    assert (told.run, told.alive, told.state.counts.assigned) == (RUN, False, 1)
    assert not host.paths.ledger.exists()
    with pytest.raises(UsageError, match=r"no run 'other' here\. Runs: trial\."):
        status(RunRequest(run="other"), host.context)


def test_status_tells_what_the_ram_disk_holds_and_how_long_prefill_waited_for_it(done: Host) -> None:
    (done.dump_dir / "roost.abc.1.1.8.safetensors").write_bytes(bytes(1000))
    waits = {"directory_wait_seconds": 1.5, "ring_wait_seconds": 0.25}
    said = CaptureStatus(pid=1, version="1", payload="", sglang="", boundaries=[], final="pre", **waits)
    (done.dump_dir / ".capture-1.json").write_text(said.model_dump_json())
    (done.dump_dir / ".capture-2.json").write_text("{torn")
    told = status(RunRequest(), done.context)
    assert told.in_flight_bytes >= 1000
    assert told.prefill_wait_seconds == 1.75


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
    with pytest.raises(HostError, match="schema 99, written by a newer Roost"):
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
    program = "import os, sys; from pathlib import Path; from remote.extract.ledger import Ledger, Row\n"
    program += "Ledger(Path(sys.argv[1])).record([Row(1, 'done', 8, 1, size_bytes=5)]); os._exit(0)"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert path.with_name("ledger.sqlite-wal").stat().st_size
    with full_disk(), Ledger(path, to_read=True) as ledger:
        assert ledger.counts().done == 1
