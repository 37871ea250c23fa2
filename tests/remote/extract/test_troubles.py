"""Trouble around a run: servers that die, hang or change, disks that fill up, and changed runs."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.extract import attempt, extractor
from remote.extract import room as room_for_dumps
from remote.extract.store import store
from remote.extract.watch import Watch
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.extract import ReopenRequest
from remote.work import conditions, disk, judgement, progress
from remote.work.lock import run_lock
from remote.work.progress import read_state
from remote.work.session import nonce_prefix
from remote.work.verbs import reopen
from tests.remote.extract.conftest import Host, Running, identity
from tests.remote.extract.standin_process import until


def says(host: Host, status: str, cause: str = "") -> Callable[[], bool]:
    def condition() -> bool:
        state = read_state(host.paths)
        return state is not None and state.status == status and cause in state.cause

    return condition


def test_a_server_that_restarts_costs_only_the_records_in_flight(
    host: Host, running: Callable[[Host], Running]
) -> None:
    server = host.serve(delay=0.02)
    host.assign([16] * 150, in_flight_tokens=64)
    run = running(host)
    until(lambda: len(host.states()) > 20, "some records")
    server.kill()
    until(says(host, "waiting", "The server 'main' is gone"), "waiting for the server")
    done = set(host.states())
    server.restart()
    assert run.end().counts.done == 150
    assert host.dumps() == []
    assert not done & {int(index) for index in server.seen()}


def test_a_record_that_kills_the_server_is_identified_and_the_others_are_done(
    host: Host, running: Callable[[Host], Running]
) -> None:
    server = host.serve(faults={"7": ["die"]})
    host.assign([16] * 20)
    run = running(host)
    for _ in range(judgement.DEATHS_LIMIT):
        until(lambda: server.process is not None and server.process.poll() is not None, "the server's death")
        server.restart()
    state = run.end()
    assert (state.counts.done, state.counts.quarantined) == (19, 1)
    assert host.states()[7] == "quarantined"
    (cause,) = host.causes()
    assert "died in all 3 attempts" in cause


def test_a_record_opened_again_during_a_session_is_done_in_that_session(
    host: Host, running: Callable[[Host], Running]
) -> None:
    """Its tries have the request ids that they had before, and what capture said of those still lies there."""
    server = host.serve(faults={"3": ["error"]}, delay=0.02)
    host.assign([16] * 60, in_flight_tokens=16)
    run = running(host)
    until(lambda: host.states().get(3) == "quarantined", "the quarantine")
    server.set_faults({})
    assert reopen(ReopenRequest(identity=identity()), host.context).records == 1
    counts = run.end().counts
    assert (counts.done, counts.quarantined) == (60, 0)


def test_a_request_that_hangs_is_aborted_and_tried_again(host: Host) -> None:
    server = host.serve(faults={"2": ["hang", ""]})
    host.assign([16] * 5, request_timeout_seconds=0.5)
    state = host.extract()
    assert (state.counts.done, state.retries) == (5, 1)
    (aborted,) = server.aborted()
    assert ".2.1." in aborted


def test_an_answer_without_a_dump_is_tried_again_and_then_quarantined(host: Host) -> None:
    host.serve(faults={"2": ["none"]})
    host.assign([16] * 5, request_timeout_seconds=0.3)
    assert host.extract().counts.quarantined == 1
    (cause,) = host.causes()
    assert "no dump came within 0.3 s" in cause


def test_no_server_for_too_long_ends_the_run_with_that_cause(host: Host) -> None:
    host.assign([16] * 5, server_wait_seconds=0.3)
    with pytest.raises(HostError, match=r"No server was ready for 0.3 s\. There is no server 'main' on this host\."):
        host.extract()


def test_a_server_without_capture_or_with_another_one_is_refused(host: Host) -> None:
    host.serve(boundaries=[1, 2, 6])
    host.assign([16] * 5)
    with pytest.raises(UsageError, match=r"boundaries \[1, 3, 6\], but the server 'main' captures \[1, 2, 6\]"):
        host.extract()


def test_a_server_that_loaded_other_weights_than_the_run_was_planned_for_gets_no_record(host: Host) -> None:
    server = host.serve(weights="e" * 32)
    host.assign([16] * 5)
    with pytest.raises(UsageError, match=f"model files of the digest '{identity().model}', but .* loaded '{'e' * 32}'"):
        host.extract()
    assert host.states() == {}
    server.config = type(server.config)(**{**vars(server.config), "weights": identity().model})
    server.restart()
    assert host.extract().status == "complete"


@pytest.mark.parametrize("changed", [{"sglang": "0.0.other"}, {"capture": "2"}])
def test_a_run_goes_on_with_the_versions_that_it_was_begun_with(host: Host, changed: dict[str, str]) -> None:
    server = host.serve()
    host.assign([16] * 5)
    host.extract()
    host.assign([16] * 6, epoch=2)
    server.config = type(server.config)(**{**vars(server.config), **changed})
    server.restart()
    before, after = ("0.0.standin", "0.0.other") if "sglang" in changed else ("1", "2")
    with pytest.raises(UsageError, match=f"version '{before}', but the server 'main' has '{after}'"):
        host.extract()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nonce", "fedcba9876543210"),
        ("dataset", "e" * 32),
        ("tokenizer", "u" * 32),
        ("model", "other"),
        ("boundaries", (1, 2, 6)),
        ("final", "post"),
        ("hidden_size", 65),
        ("dtype", "BF16"),
    ],
)
def test_another_run_is_refused_with_both_values_named(host: Host, field: str, value: object) -> None:
    host.serve()
    host.assign([16])
    host.extract()
    host.assign([16], epoch=2, identity=identity(**{field: value}))
    with pytest.raises(UsageError) as refused:
        host.extract()
    for one in (getattr(identity(), field), value):
        words = ", ".join(map(str, one)) if isinstance(one, tuple) else str(one)
        assert f" {words}" in refused.value.message


def test_below_min_free_a_run_waits_says_so_and_continues_by_itself(
    host: Host, running: Callable[[Host], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [10_000_000]
    monkeypatch.setattr(conditions.Conditions, "free_bytes", lambda _: free[0])
    server = host.serve()
    host.assign([16] * 10, min_free_bytes=11_000_000)
    run = running(host)
    until(says(host, "waiting", "The disk lacks"), "waiting for the disk")
    assert server.seen() == {}
    free[0] = 12_000_000
    assert run.end().counts.done == 10


def test_a_disk_that_fills_up_under_a_shard_keeps_the_dump_and_loses_nothing(
    host: Host, running: Callable[[Host], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()
    full.set()

    def refuse(dump: Path, shard: Path, expected: object) -> object:
        if full.is_set():
            raise OSError(28, "No space left on device")
        return store(dump, shard, expected)  # type: ignore[arg-type]

    monkeypatch.setattr(attempt, "store", refuse)
    monkeypatch.setattr(disk, "DISK_POLL_SECONDS", 0.01)
    server = host.serve()
    host.assign([16] * 3)
    run = running(host)
    until(lambda: len(host.dumps()) == 3, "dumps that wait")
    full.clear()
    state = run.end()
    assert (state.counts.done, state.retries) == (3, 0)
    assert set(server.seen().values()) == {1}


def test_a_disk_that_fails_ends_the_run_with_its_own_words(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(attempt, "store", broken)
    host.serve()
    host.assign([16] * 3)
    with pytest.raises(HostError, match=r"shard of record \d could not be written: Input/output error"):
        host.extract()


def test_uncollected_dumps_never_pass_the_high_water_mark_and_the_wait_is_counted(host: Host) -> None:
    host.serve(high_water=60_000)
    host.assign([64] * 12)
    state = host.extract()
    assert state.counts.done == 12
    assert state.backpressure_seconds > 0


def test_leftover_dumps_of_this_run_are_removed_and_others_stay(host: Host) -> None:
    host.serve()
    host.assign([16] * 3)
    host.extract()
    (nonce,) = _nonces(host)
    mine = [f"roost.{nonce}.1.7.16.safetensors", f"roost.{nonce}.2.7.16.stage0of2.safetensors"]
    mine.append(f"roost.{nonce}.1.7.16.error.json")
    others = ["roost.deadbeef.1.1.16.safetensors", "notes.txt", ".capture-1.json"]
    for name in [*mine, *others]:
        (host.dump_dir / name).write_bytes(b"x")
    host.assign([16] * 4, epoch=2)
    host.extract()
    assert host.dumps() == sorted(others)


def test_a_session_without_open_records_removes_a_killed_sessions_dumps(host: Host) -> None:
    host.serve()
    host.assign([16] * 3)
    host.extract()
    (nonce,) = _nonces(host)
    (host.dump_dir / f"roost.{nonce}.2.1.16.safetensors").write_bytes(b"committed, and not removed any more")
    assert host.extract().status == "complete"
    assert host.dumps() == []


def test_dumps_of_a_session_whose_ledger_is_lost_do_not_fill_the_ram_disk(host: Host) -> None:
    host.serve()
    host.assign([16] * 3)
    host.extract()
    (nonce,) = _nonces(host)
    for left in host.paths.root.glob("ledger.sqlite*"):
        left.unlink()
    (host.dump_dir / f"roost.{nonce}.1.1.16.safetensors").write_bytes(b"came after its extractor was killed")
    assert host.extract().counts.done == 3
    assert host.dumps() == []


def test_dumps_of_another_run_are_removed_once_it_has_no_extractor(host: Host) -> None:
    host.serve()
    other = host.workdir.run("other")
    left = f"roost.{nonce_prefix(other)}aaaa.1.1.16.safetensors"
    with run_lock(other):
        (host.dump_dir / left).write_bytes(b"x")
        host.assign([16] * 3)
        host.extract()
        assert host.dumps() == [left]
    host.extract()
    assert host.dumps() == []


def test_a_dump_that_inv_stop_removed_before_it_was_collected_costs_only_an_attempt(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[Path] = []

    def late(dump: Path, shard: Path, expected: object) -> object:
        if not gone:
            gone.append(dump)
            dump.unlink()
        return store(dump, shard, expected)  # type: ignore[arg-type]

    monkeypatch.setattr(attempt, "store", late)
    host.serve()
    host.assign([16] * 3)
    state = host.extract()
    assert (state.counts.done, state.retries) == (3, 1)


def test_shards_without_a_row_are_removed_and_rows_without_a_shard_are_done_again(host: Host) -> None:
    server = host.serve()
    host.assign([16] * 4)
    host.extract()
    host.paths.shard(1).unlink()
    host.paths.shard(2).write_bytes(b"torn")
    host.paths.shard(9).write_bytes(b"a stranger")
    (host.paths.shards / ".aside-1-00-hs_3.safetensors").write_bytes(b"half")
    before = server.seen()
    assert host.extract().counts.done == 4
    assert {index for index, count in server.seen().items() if count > before[index]} == {"1", "2"}
    assert sorted(path.name for path in host.paths.shards.iterdir()) == [f"hs_{i}.safetensors" for i in range(4)]


def _nonces(host: Host) -> set[str]:
    from remote.work.ledger import Ledger

    with Ledger(host.paths.ledger) as ledger:
        return ledger.nonces()


def test_a_ram_disk_filled_by_others_is_waited_for_and_costs_no_attempt(
    host: Host, running: Callable[[Host], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture then cannot even say why there is no dump: the request's own timeout would be the first to end it."""
    room = {"bytes": 1 << 30}
    monkeypatch.setattr(room_for_dumps, "room_bytes", lambda _: room["bytes"])
    monkeypatch.setattr(extractor, "room_bytes", lambda _: room["bytes"])
    monkeypatch.setattr(room_for_dumps, "FULL_GRACE_SECONDS", 0.2)
    host.serve(faults={"3": ["none", ""]}, delay=1.0)
    host.assign([16] * 5, in_flight_tokens=16, request_timeout_seconds=3600.0, max_attempts=1)
    run = running(host)
    until(lambda: len(host.states()) >= 3, "the records before the one whose dump finds no room")
    room["bytes"] = 0
    until(says(host, "waiting", "no room for the next record's dump"), "waiting for the RAM disk")
    room["bytes"] = 1 << 30
    assert run.end().counts.done == 5


def test_a_server_that_is_broken_for_a_while_near_the_end_costs_no_record(
    host: Host, running: Callable[[Host], Running]
) -> None:
    """Too few records are left for a run of failures to stop the session; none of them is to blame all the same."""
    last = [str(index) for index in range(6, 10)]
    server = host.serve(faults={index: ["500"] for index in last})
    host.assign([16] * 10, in_flight_tokens=16)
    run = running(host)
    until(lambda: all(server.seen().get(index, 0) >= 3 for index in last), "as many tries as a bad record is given")
    server.set_faults({})
    assert run.end().counts.done == 10


def test_a_state_file_that_cannot_be_written_delays_no_record(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.serve()
    host.assign([8] * 4)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(progress, "write_whole", full)
    assert host.extract().status == "complete"
    assert set(host.states().values()) == {"done"}


def test_a_part_of_the_extractor_that_breaks_ends_the_run_at_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.serve()
    host.assign([8] * 4)

    async def broken(self: Watch) -> None:
        raise ValueError("nobody thought of this")

    monkeypatch.setattr(Watch, "run", broken)
    with pytest.raises(HostError, match="in Roost itself and ended: ValueError: nobody thought of this"):
        host.extract()
    monkeypatch.undo()
    assert host.extract().status == "complete"
    assert host.dumps() == []


def test_a_dump_directory_that_is_removed_and_created_again_costs_no_record(
    host: Host, running: Callable[[Host], Running]
) -> None:
    host.serve(delay=0.05)
    host.assign([16] * 60, in_flight_tokens=64, max_attempts=1, max_consecutive_failures=3)
    run = running(host)
    until(lambda: len(host.states()) > 10, "some records")
    shutil.rmtree(host.dump_dir)
    until(says(host, "waiting", "was removed"), "waiting for the directory")
    host.dump_dir.mkdir()
    (host.dump_dir / ".roost").touch()
    counts = run.end().counts
    assert (counts.done, counts.quarantined) == (60, 0)


def test_a_dump_directory_that_stays_away_ends_the_run_with_its_likely_cause(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extractor, "GONE_SECONDS", 0.3)
    host.serve()
    host.assign([16] * 6)
    shutil.rmtree(host.dump_dir)
    with pytest.raises(
        HostError, match=r"was removed\. Its supervisor did not create it again within 0 s\. Most likely.*`inv restart`"
    ):
        host.extract()
