"""A history stays small for any length of run, keeps counters correct while it thins, and survives damaged files."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from remote.history import store
from remote.history.store import HistoryError, to_read, to_write
from remote.history.thinning import at_most
from remote.shared.messages.history import Event, Point

START = 1_800_000_000.0
DAY = 86_400.0


def reading(at: float, gpus: int = 8) -> Point:
    """What a busy eight-GPU host says."""
    passed = at - START
    values = {"tokens_per_second": 51_234.5, "done": passed // 3, "in_flight": 31, "waited.ramdisk": passed / 7}
    for gpu in range(gpus):
        values |= {f"gpu{gpu}.use": 97, f"gpu{gpu}.memory": 141_000_000_000 + gpu, f"gpu{gpu}.watts": 688.25}
        values |= {f"gpu{gpu}.celsius": 60 + passed % 17, f"gpu{gpu}.megahertz": 1980}
    return Point(at=at, step=10, values=values)


def filled(path: Path, days: float, every: float = 10.0, at_once: int = 360) -> None:
    """A run of so many days, an hour a commit."""
    with to_write(path)[0] as written:
        ticks = int(days * DAY / every)
        for first in range(0, ticks, at_once):
            points = [reading(START + every * tick) for tick in range(first, min(first + at_once, ticks))]
            written.add(points, [], points[-1].at)


def test_points_are_fine_for_an_hour_coarser_for_a_day_and_coarser_beyond(tmp_path: Path) -> None:
    path, end = tmp_path / "history.sqlite", START + 2 * DAY
    filled(path, 2)
    with to_read(path) as history:
        points = list(history.points())
    steps = {(point.step, end - point.at > 3700, end - point.at > DAY + 700) for point in points}
    assert steps == {(10, False, False), (60, True, False), (600, True, True)} | (
        {(60, False, False)} & steps  # the minute on the edge of the hour
    )
    assert [point.at for point in points] == sorted(point.at for point in points)


def test_counters_keep_their_last_value_and_temperatures_their_highest_while_thinning(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    filled(path, 1.5)
    with to_read(path) as history:
        first = next(history.points())
    assert first.step == 600
    assert first.values["done"] == 590 // 3
    assert first.values["gpu3.celsius"] == max(60 + second % 17 for second in range(0, 600, 10))
    assert first.values["tokens_per_second"] == pytest.approx(51_234.5, abs=1)


def test_the_file_stays_below_its_bound_for_many_months(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", 300_000)
    path = tmp_path / "history.sqlite"
    filled(path, 45, every=300.0, at_once=48)
    assert path.stat().st_size < 400_000
    with to_read(path) as history:
        points = list(history.points())
    assert points[0].at <= START + 600
    assert points[0].step > 600


def test_events_are_bounded_in_number_and_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_EVENTS", 5)
    with to_write(tmp_path / "h")[0] as history:
        for number in range(8):
            history.add([], [Event(at=number, kind="ready", subject="server main", text=f"{number}" + "x" * 9999)], 0)
        events = history.events()
    assert [event.text[0] for event in events] == ["3", "4", "5", "6", "7"]
    assert len(events[0].text) == store.MOST_TEXT


def test_a_clock_that_jumps_back_loses_nothing(tmp_path: Path) -> None:
    with to_write(tmp_path / "h")[0] as history:
        history.add([reading(START + 5000)], [], START + 5000)
        history.add([reading(START)], [], START)
        assert [point.at for point in history.points()] == [START, START + 5000]


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    with to_write(tmp_path / "h")[0] as history:
        history.add([Point(at=1, step=10, values={"a": float("nan"), "b": float("inf"), "c": 2})], [], 1)
        assert [point.values for point in history.points()] == [{"c": 2}]


def test_a_history_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    to_write(tmp_path / "h")
    assert stat.S_IMODE((tmp_path / "h").stat().st_mode) == 0o600


def test_a_damaged_history_is_one_sentence_to_read_and_set_aside_by_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"no database at all " * 500)
    with pytest.raises(HistoryError, match="is damaged"):
        to_read(path)
    history, said = to_write(path)
    with history:
        history.add([reading(START)], [], START)
    assert "set aside as history.sqlite.set-aside" in said
    assert (tmp_path / "history.sqlite.set-aside").read_bytes().startswith(b"no database")


def test_a_page_that_was_overwritten_is_a_damaged_history(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    filled(path, 0.05)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(HistoryError, match="damaged"):
        to_read(path)


def test_a_history_of_a_later_version_is_one_sentence_and_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=9")
    with pytest.raises(HistoryError, match="has version 9, but this Roost knows version 1") as caught:
        to_read(path)
    assert "newer Roost" in caught.value.remedy
    assert "set aside" in to_write(path)[1]


def test_a_run_without_a_history_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="There is no history"):
        to_read(tmp_path / "history.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_its_place_is_neither_read_nor_written(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    (tmp_path / "h").symlink_to(other)
    for opened in (to_read, to_write):
        with pytest.raises(Exception, match="not Roost's"):
            opened(tmp_path / "h")
    assert other.read_bytes() == b"mine"


def test_at_most_the_requested_number_of_points_is_returned() -> None:
    points = [reading(START + 10 * tick, gpus=1) for tick in range(5000)]
    told = at_most(points, 100)
    assert len(told) <= 100
    assert told[-1].values["done"] == points[-1].values["done"]
    assert at_most(points[:7], 100) == points[:7]
