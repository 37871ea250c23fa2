"""Rows on their way to disk, without SGLang: complete records, and faults that fail a single record."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from remote.capture import admission as admission_module
from remote.capture.admission import Admission
from remote.capture.batch import Segment
from remote.capture.environment import Settings
from remote.capture.families import State
from remote.capture.gather import Gather
from remote.capture.place import Place
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import register, withdraw

SLOTS, HIDDEN = (1, 2), 8
PLACE = Place(boundaries=SLOTS, local=SLOTS, depth=2, part=0, parts=1, writes=True, writers=1)
Pass = Sequence[tuple[RequestId, int, int]]
"""(request, first row, rows) of a forward pass, in its order."""


class Harness:
    """An admission fed with passes whose values say which row of which request they are."""

    def __init__(self, directory: Path, *, pinned: int = 1 << 20, high_water: int = 1 << 30) -> None:
        self.directory = directory
        register(directory, "n")
        wanted = Settings(directory, (1,), "pre", high_water, pinned, writers=2)
        self.admission = Admission(wanted, PLACE, sglang="0", pinned=False)

    def states(self, request: RequestId, first: int, rows: int) -> torch.Tensor:
        at = torch.arange(first, first + rows, dtype=torch.float32)[:, None, None]
        scale = torch.tensor([1.0, 1000.0])[None, :, None]
        return (1 + at + (request.index or 0) * 100) * scale * torch.ones(1, 1, HIDDEN)

    def send(self, batch: Pass, change: Callable[[torch.Tensor], None] = lambda states: None) -> None:
        segments, offset = [], 0
        for request, first, rows in batch:
            segments.append(Segment(request, offset, first, rows))
            offset += rows
        states = torch.cat([self.states(*part) for part in batch])
        change(states)
        gather = Gather(segments, SLOTS)
        for slot, boundary in enumerate(SLOTS):
            gather.put(boundary, State(states[:, slot]))
        gather.close(torch.cat([torch.arange(first, first + rows) for _, first, rows in batch]))
        self.admission.put(gather)

    def outcome(self, request: RequestId) -> Path:
        names = [self.directory / f"{request}.safetensors", self.directory / f"{request}.error.json"]
        await_true(lambda: any(name.exists() for name in names))
        return next(name for name in names if name.exists())

    def cause(self, request: RequestId) -> str:
        outcome = self.outcome(request)
        assert outcome.suffix == ".json"
        cause: str = json.loads(outcome.read_text())["cause"]
        return cause

    def assert_whole(self, request: RequestId) -> None:
        dump = load_file(self.outcome(request))
        assert torch.equal(dump["hidden_states"], self.states(request, 0, request.rows))
        assert torch.equal(dump["token_ids"], torch.arange(request.rows))


def await_true(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def record(index: int, rows: int) -> RequestId:
    return RequestId("n", index, 0, rows)


def test_chunks_of_several_records_join(harness: Harness) -> None:
    one, two, three = record(1, 5), record(2, 9), record(3, 2)
    harness.send([(one, 0, 5), (two, 0, 3)])
    harness.send([(two, 3, 5)])
    harness.send([(two, 8, 1), (three, 0, 2)])
    for request in (one, two, three):
        harness.assert_whole(request)
    await_true(lambda: harness.admission.totals.records == 3)
    assert harness.admission.in_flight == 0


def test_a_pass_larger_than_the_ring_goes_through_it(tmp_path: Path) -> None:
    row = len(SLOTS) * HIDDEN * 4
    harness = Harness(tmp_path, pinned=3 * row)
    harness.send([(record(1, 50), 0, 50)])
    harness.assert_whole(record(1, 50))
    await_true(lambda: harness.admission.totals.records == 1)
    assert harness.admission.in_flight == 0


@pytest.mark.parametrize(
    ("passes", "cause"),
    [
        ([(3, 2)], "Rows 0 to 2 never came: they were served from a prefix cache, or a chunk was lost."),
        ([(0, 2), (3, 2)], "Rows 2 to 2 never came: they were served from a prefix cache, or a chunk was lost."),
        ([(0, 4), (2, 2)], "Rows from 2 on came twice: the request was prefilled again."),
        ([(0, 6)], "6 rows came, but the request's id says 5."),
    ],
)
def test_rows_that_do_not_make_the_record_fail_it(harness: Harness, passes: list[tuple[int, int]], cause: str) -> None:
    bad, good = record(1, 5), record(2, 3)
    for first, rows in passes:
        harness.send([(bad, first, rows)])
    harness.send([(good, 0, 3)])
    assert harness.cause(bad) == cause
    harness.assert_whole(good)
    assert not list(harness.directory.glob(".aside*"))


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (float("nan"), "Row 3 of boundary 2 holds a value that is not finite."),
        (float("inf"), "Row 3 of boundary 2 holds a value that is not finite."),
        (0.0, "Row 3 of boundary 2 is all zeros."),
    ],
)
def test_impossible_values_fail_the_record(harness: Harness, value: float, cause: str) -> None:
    def change(states: torch.Tensor) -> None:
        states[3, 1] = value

    harness.send([(record(1, 5), 0, 5), (record(2, 4), 0, 4)], change)
    assert harness.cause(record(1, 5)) == cause
    harness.assert_whole(record(2, 4))


def test_a_request_that_is_over_is_not_captured_again(harness: Harness) -> None:
    harness.send([(record(1, 5), 0, 5)])
    path = harness.outcome(record(1, 5))
    path.unlink()
    harness.send([(record(1, 5), 0, 5)])
    harness.send([(record(2, 1), 0, 1)])
    harness.assert_whole(record(2, 1))
    assert not path.exists()


def test_an_id_whose_session_nobody_registered_leaves_no_trace(harness: Harness, tmp_path: Path) -> None:
    forged = [RequestId("m", index, 0, 5) for index in range(3)]
    (tmp_path / ".session-link").symlink_to(tmp_path / ".session-n")
    linked = RequestId("link", 4, 0, 5)
    harness.send([(forged[0], 0, 5), (record(1, 5), 0, 5), (linked, 0, 5)])
    harness.send([(forged[1], 2, 3)])
    with_cause = Gather([Segment(forged[2], 0, 0, 5)], SLOTS)
    with_cause.fail("a pass that failed")
    harness.admission.put(with_cause)
    harness.send([(record(2, 5), 0, 5)])
    for mine in (record(1, 5), record(2, 5)):
        harness.assert_whole(mine)
    assert {path.name for path in tmp_path.glob("roost.*")} == {f"{record(i, 5)}.safetensors" for i in (1, 2)}
    assert harness.admission.totals.failed == 0
    assert harness.admission.in_flight == 0
    withdraw(tmp_path, "n")
    harness.send([(record(3, 2), 0, 2)])  # known to this server until it ends
    harness.assert_whole(record(3, 2))


def test_rows_that_stop_coming_fail_the_record(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "STALE_SECONDS", 0.0)
    harness.send([(record(1, 5), 0, 3)])
    await_true(lambda: harness.admission.in_flight == 1 and not harness.admission._busy)
    harness.admission.expire()
    assert harness.cause(record(1, 5)) == "3 of 5 rows came, and no more for 0 s."


def held_bytes(folder: Path) -> int:
    """The bytes of all files in the folder; capture may remove a file while this looks."""
    held = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            held += path.stat().st_size
    return held


def test_at_the_high_water_mark_rows_wait_for_the_collector(tmp_path: Path) -> None:
    size = 4096 + 8 * 5 + 5 * len(SLOTS) * HIDDEN * 4
    harness = Harness(tmp_path, high_water=2 * size)
    requests = [record(index, 5) for index in range(6)]
    for request in requests[:3]:
        harness.send([(request, 0, 5)])
    await_true(lambda: len(list(tmp_path.glob("roost.*"))) == 2 and harness.admission.in_flight == 1)
    for number, request in enumerate(requests):
        harness.assert_whole(request)
        assert held_bytes(tmp_path) <= 2 * size
        harness.outcome(request).unlink()
        if number + 3 < len(requests):
            harness.send([(requests[number + 3], 0, 5)])
    assert harness.admission.space.waits.times > 0


def test_a_forward_pass_waits_for_the_collector_up_to_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's watchdog would take a longer wait for a hang and end the server."""
    monkeypatch.setattr(admission_module, "PATIENCE_SECONDS", 0.2)
    size = 4096 + 8 * 5 + 5 * len(SLOTS) * HIDDEN * 4
    harness = Harness(tmp_path, high_water=size)
    harness.send([(record(0, 5), 0, 5)])
    first = harness.outcome(record(0, 5))
    harness.send([(record(1, 5), 0, 5)])  # the admission thread waits with it
    await_true(lambda: harness.admission._busy and harness.admission._queue.empty())
    harness.send([(record(2, 5), 0, 5)])
    harness.send([(record(3, 5), 0, 3)])
    harness.send([(record(4, 5), 0, 5)])
    assert "Rows did not move for 0 s" in harness.cause(record(4, 5))
    monkeypatch.setattr(admission_module, "PATIENCE_SECONDS", 60.0)
    harness.send([(record(5, 5), 0, 5), (record(3, 5), 3, 2)])  # the first rows of 3 lie in the queue
    assert "Rows did not move" in harness.cause(record(5, 5))
    assert harness.admission.waits.times == 2
    assert 0.2 <= harness.admission.waits.seconds < 60
    first.unlink()
    for request in (record(1, 5), record(2, 5)):
        harness.assert_whole(request)
        harness.outcome(request).unlink()
    assert "Rows did not move" in harness.cause(record(3, 5))
    harness.send([(record(6, 5), 0, 5)])
    harness.assert_whole(record(6, 5))


def test_a_record_that_the_mark_can_never_admit_fails_alone(tmp_path: Path) -> None:
    harness = Harness(tmp_path, high_water=6000)
    harness.send([(record(1, 5), 0, 5), (record(2, 500), 0, 500), (record(3, 5), 0, 5)])
    assert "share of the dump directory's high-water mark (6000 bytes)" in harness.cause(record(2, 500))
    harness.assert_whole(record(1, 5))


def test_unfinished_records_at_the_mark_do_not_wait_for_each_other(tmp_path: Path) -> None:
    harness = Harness(tmp_path, high_water=8000)
    one, two = record(1, 5), record(2, 5)
    harness.send([(one, 0, 3)])
    harness.send([(two, 0, 3)])
    assert "whose last rows can only come after" in harness.cause(two)
    harness.send([(one, 3, 2)])
    harness.assert_whole(one)


def test_a_vanished_directory_fails_the_records_and_is_not_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "dumps"
    directory.mkdir()
    harness = Harness(directory)
    harness.send([(record(1, 5), 0, 3)])
    await_true(lambda: bool(list(directory.glob(".aside*"))))
    shutil.rmtree(directory)
    harness.send([(record(1, 5), 3, 2), (record(2, 2), 0, 2)])
    await_true(lambda: harness.admission.totals.failed == 2)
    assert harness.admission.totals.last_cause == f"The dump directory {directory} has vanished."
    assert not directory.exists()
    directory.mkdir()
    harness.send([(record(3, 2), 0, 2)])
    harness.assert_whole(record(3, 2))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A RAM disk of 64 KiB; needs root."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("cannot mount a RAM disk here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_ram_disk_fails_the_record_that_does_not_fit(small_disk: Path) -> None:
    harness = Harness(small_disk)
    big, small = record(1, 1000), record(2, 5)
    harness.send([(big, 0, 1000), (small, 0, 5)])
    assert harness.cause(big) == f"The file system of {small_disk} is full."
    harness.assert_whole(small)
