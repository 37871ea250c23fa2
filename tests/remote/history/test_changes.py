"""What a host's recorder notices between two looks, case by case."""

from __future__ import annotations

import pytest

from remote.history.changes import Memory, changes
from remote.shared.messages.extract import Counts, ExtractorState
from remote.shared.messages.history import Reading, RunReading, ServerReading, Settings

NOW = 1_800_000_000.0
SETTINGS = Settings(host="gpu1", stall_seconds=600, min_free_bytes=1_000)


def run(
    status: str = "running",
    done: int = 0,
    alive: bool = True,
    wished: str = "resume",
    free: int = 5_000,
    **state: object,
) -> RunReading:
    counts = Counts(assigned=100, done=done, quarantined=int(str(state.pop("quarantined", 0))))
    given = {"run": "r", "epoch": 1, "status": status, "started_at": 5.0, "counts": counts, **state}
    return RunReading.model_validate(
        {"run": "r", "alive": alive, "word": status, "wished": wished, "state": ExtractorState.model_validate(given),
         "disk_free_bytes": free}
    )  # fmt: skip


def server(status: str, start: int = 1, **values: object) -> ServerReading:
    return ServerReading.model_validate(
        {"name": "main", "mode": "extract", "status": status, "start": start, "alive": True, **values}
    )


def seen(*looks: tuple[float, RunReading | ServerReading]) -> list[str]:
    """Kinds of the events of these looks, the first one's left out."""
    memory = Memory()
    kinds: list[str] = []
    for number, (seconds, one) in enumerate(looks):
        reading = Reading(at=NOW + seconds)
        (reading.runs if isinstance(one, RunReading) else reading.servers).append(one)  # type: ignore[arg-type]
        events = changes(memory, reading, SETTINGS)
        kinds += [event.kind for event in events] if number else []
    return kinds


@pytest.mark.parametrize(
    ("after", "kinds"),
    [
        (run(done=5), []),
        (run(done=5, wished="pause"), ["paused"]),
        (run("complete", 100, alive=False), ["finished"]),
        (run("stopped", 40, alive=False), ["stopped"]),
        (run("failed", 40, alive=False, cause="No server."), ["failed"]),
        (run("failed", 40, alive=False, cause="a log-probability 3 away from the server's"), ["parity-failed"]),
        (run("waiting", cause="The disk lacks 3.1 GB in addition to the free space to keep."), ["waiting"]),
        (run(quarantined=2, quarantine_causes={"too long": 2}), ["quarantined"]),
        (run(quarantined=1, quarantine_causes={"a log-probability 2 away": 1}), ["quarantined", "parity-failed"]),
        (run(started_at=77.0), ["started"]),
    ],
)  # fmt: skip
def test_each_change_of_a_run_is_one_event(after: RunReading, kinds: list[str]) -> None:
    assert seen((0, run()), (10, after)) == kinds


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (server("starting"), server("ready"), ["ready"]),
        (server("ready"), server("failed", cause="OOM"), ["failed"]),
        (server("ready"), server("stopped", alive=False), ["stopped"]),
        (server("ready"), server("starting", 2, restarts=1), ["restarted"]),
        (server("ready"), server("starting", 2), ["started"]),
        (server("failed"), server("ready", 2), ["started", "ready"]),
        (server("ready"), server("ready", alive=False), ["failed"]),
        (server("ready"), server("ready", trouble="12:00: its dump directory vanished"), ["trouble"]),
        (server("ready"), server("ready"), []),
    ],
)
def test_each_change_of_a_server_is_an_event(before: ServerReading, after: ServerReading, kinds: list[str]) -> None:
    assert seen((0, before), (10, after)) == kinds


def test_a_run_without_progress_is_stalled_once_and_again_only_after_it_moved() -> None:
    still = [(seconds, run(done=5)) for seconds in range(0, 3000, 60)]
    assert seen(*still) == ["stalled"]
    assert seen(*still, (3000, run(done=6)), *((3060 + seconds, run(done=6)) for seconds in range(0, 700, 60))) == [
        "stalled", "stalled",
    ]  # fmt: skip


def test_delivered_and_deleted_records_are_an_event_when_they_are_counted() -> None:
    counted = [run().model_copy(update={"freed": freed}) for freed in (5, None, 9, 9)]
    assert seen(*((10.0 * number, one) for number, one in enumerate(counted))) == ["freed"]


def test_a_paused_run_is_never_stalled() -> None:
    looks = [(float(seconds), run(done=5, wished="pause")) for seconds in range(0, 3000, 60)]
    assert seen(*looks) == []


def test_a_repeated_wait_is_one_event() -> None:
    waits = [run("waiting", cause=f"The disk lacks {size} GB.") for size in range(1, 20)]
    cycle = [
        look for number, one in enumerate(waits) for look in ((20.0 * number + 10, one), (20.0 * number + 20, run()))
    ]
    assert seen((0, run()), *cycle) == ["waiting"]


def test_a_low_disk_is_told_once_until_there_is_room_again() -> None:
    low = [(10.0 * number, run(free=900 if number % 2 else 1_020)) for number in range(1, 7)]
    assert seen((0, run()), *low) == ["disk-low"]


def test_a_recorder_that_did_not_run_reports_the_gap() -> None:
    assert seen((0, run()), (3600, run(done=50))) == ["gap"]
    assert seen((0, run("complete", alive=False)), (3600, run("complete", alive=False))) == []


def test_a_new_recorder_tells_nothing_twice() -> None:
    memory = Memory()
    changes(memory, Reading(at=NOW, servers=[server("ready")], runs=[run(done=5)]), SETTINGS)
    again = Memory.model_validate_json(memory.model_dump_json())
    assert changes(again, Reading(at=NOW + 10, servers=[server("ready")], runs=[run(done=6)]), SETTINGS) == []


def test_a_clock_that_was_set_back_makes_no_stall() -> None:
    assert seen((0, run(done=5)), (-90_000, run(done=5)), (-89_990, run(done=5))) == []
