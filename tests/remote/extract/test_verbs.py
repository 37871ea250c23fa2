"""The verbs that read a run's ledger, and the verbs that change it."""

from __future__ import annotations

import io
import json
import sqlite3

import pytest

from remote.context import Context
from remote.report import Report
from remote.shared.errors import UsageError
from remote.shared.messages.capture import CaptureStatus
from remote.shared.messages.extract import (
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
from remote.work.ledger import Ledger, Row
from remote.work.verbs import fence, freed, reopen, requeue, shards, status
from tests.remote.extract.conftest import RUN, Host, identity


def rows_of(host: Host, **request: int) -> tuple[list[int], ShardsResult]:
    """Streamed indices and the result of the verb `shards`."""
    stream = io.StringIO()
    result = shards(ShardsRequest(identity=identity(), **request), Context(host.workdir, Report(stream)))
    items = [json.loads(line) for line in stream.getvalue().splitlines()]
    batches = [ShardBatch.model_validate(item["value"]) for item in items if item["type"] == "item"]
    return [row.index for batch in batches for row in batch.rows], result


def delivered(host: Host, *indices: int) -> FreedRequest:
    """These records, as their host's ledger has them now."""
    with Ledger(host.paths.ledger) as ledger:
        rows = [row for _, row in ledger.shards() if row.index in indices]
    return FreedRequest(identity=identity(), records=[Delivered(index=row.index, xxh3=row.xxh3) for row in rows])


@pytest.fixture
def done(host: Host) -> Host:
    """A host with ten finished records."""
    host.serve()
    host.assign([8] * 10)
    host.extract()
    return host


def test_shards_after_a_cursor_are_only_the_newer_ones(done: Host) -> None:
    first, told = rows_of(done, limit=4)
    rest, end = rows_of(done, after=told.cursor)
    assert (len(first), len(rest), set(first + rest)) == (4, 6, set(range(10)))
    assert rows_of(done, after=end.cursor)[0] == []
    assert end.status == "complete"
    assert end.counts.done == 10


def test_a_record_that_is_done_again_is_listed_again(done: Host) -> None:
    _, told = rows_of(done)
    assert requeue(IndicesRequest(identity=identity(), epoch=1, indices=[3, 5, 99]), done.context).records == 2
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


def test_freeing_a_record_twice_or_before_it_is_done_changes_nothing(done: Host) -> None:
    wanted = delivered(done, 2)
    freed(wanted, done.context)
    wanted.records.append(Delivered(index=77, xxh3="0" * 32))
    again = freed(wanted, done.context)
    assert (again.records, again.freed_bytes) == (0, 0)


def test_a_record_that_was_extracted_again_after_its_delivery_is_not_freed(done: Host) -> None:
    wanted = delivered(done, 2, 3)
    with Ledger(done.paths.ledger) as ledger:
        ledger.record([Row(2, "done", 8, 1, size_bytes=1, xxh3="0" * 32)])
    assert freed(wanted, done.context).records == 1
    assert (done.states()[2], done.states()[3]) == ("done", "freed")
    assert done.paths.shard(2).exists()
    assert not done.paths.shard(3).exists()


def test_a_fenced_host_has_no_open_records_and_keeps_finished_ones(done: Host) -> None:
    told = fence(FenceRequest(identity=identity(), epoch=5), done.context)
    assert (told.state.counts.assigned, told.state.counts.done, told.state.counts.beyond) == (0, 0, 10)
    with pytest.raises(UsageError, match="was given epoch 5 of the run 'trial', but this laptop's plan has epoch 1"):
        requeue(IndicesRequest(identity=identity(), epoch=1, indices=[1]), done.context)
    requeue(IndicesRequest(identity=identity(), epoch=5, indices=[1]), done.context)
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


def test_a_dry_run_counts_quarantined_records_and_reopen_opens_named_or_all_of_them(quarantined: Host) -> None:
    (cause,) = quarantined.causes()
    told = reopen(ReopenRequest(identity=identity(), dry_run=True), quarantined.context)
    assert (told.records, told.causes, len(quarantined.states())) == (2, {cause: 2}, 10)
    assert reopen(ReopenRequest(identity=identity(), indices=[3, 4, 99]), quarantined.context).records == 1
    assert set(range(10)) - set(quarantined.states()) == {3}
    assert reopen(ReopenRequest(identity=identity()), quarantined.context).records == 1
    assert quarantined.extract().counts.done == 10
    assert reopen(ReopenRequest(identity=identity()), quarantined.context).records == 0


def test_the_ledger_keeps_the_cause_of_a_quarantined_record_that_is_opened_again(quarantined: Host) -> None:
    (cause,) = quarantined.causes()
    reopen(ReopenRequest(identity=identity(), indices=[5]), quarantined.context)
    quarantined.extract()
    with sqlite3.connect(quarantined.paths.ledger) as db:
        assert db.execute("SELECT idx, cause, attempts FROM reopened").fetchall() == [(5, cause, 1)]
    assert quarantined.causes() == {cause: 1}


def test_a_run_that_has_not_begun_has_nothing_to_open_and_gets_no_ledger(host: Host) -> None:
    host.assign([8])
    assert reopen(ReopenRequest(identity=identity()), host.context).records == 0
    assert not host.paths.ledger.exists()


def test_status_of_a_host_without_a_run_is_an_answer_and_an_unknown_run_a_usage_error(host: Host) -> None:
    assert status(RunRequest(), host.context).run == ""
    host.assign([8])
    told = status(RunRequest(), host.context)
    assert (told.run, told.alive, told.state.counts.assigned) == (RUN, False, 1)
    assert not host.paths.ledger.exists()
    with pytest.raises(UsageError, match=r"no run 'other' on this host\. Runs: trial\."):
        status(RunRequest(run="other"), host.context)


def test_status_shows_the_dumps_in_the_ram_disk_and_the_time_that_prefill_waited(done: Host) -> None:
    (done.dump_dir / "roost.abc.1.1.8.safetensors").write_bytes(bytes(1000))
    waits = {"directory_wait_seconds": 1.5, "ring_wait_seconds": 0.25}
    said = CaptureStatus(pid=1, version="1", payload="", sglang="", boundaries=[], final="pre", **waits)
    (done.dump_dir / ".capture-1.json").write_text(said.model_dump_json())
    (done.dump_dir / ".capture-2.json").write_text("{torn")
    told = status(RunRequest(), done.context)
    assert told.in_flight_bytes >= 1000
    assert told.prefill_wait_seconds == 1.75
