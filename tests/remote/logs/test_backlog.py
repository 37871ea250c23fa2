"""Where the asked-for lines begin, checked against the plain definition over random files."""

from __future__ import annotations

import os
import random
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from remote.logs import backlog
from remote.logs.backlog import backlog_start, logged_at
from remote.logs.pattern import Pattern


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that every edge between two of them is met."""
    monkeypatch.setattr(backlog, "CHUNK_BYTES", 7)


def _write(folder: Path, contents: list[str]) -> list[Path]:
    paths = [folder / f"main_v{number}.log" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content.encode())
    return paths


def _from(start: backlog.Start, files: list[Path]) -> str:
    number = files.index(start.path)
    rest = [start.path.read_bytes()[start.offset :], *(path.read_bytes() for path in files[number + 1 :])]
    return b"|".join(rest).decode()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(40))
def test_the_last_lines_are_those_that_splitting_all_files_would_give(tmp_path: Path, seed: int) -> None:
    pick = random.Random(seed)
    contents = ["".join(pick.choice("ab\n\né") for _ in range(pick.randrange(40))) for _ in range(3)]
    files = _write(tmp_path, contents)
    count = pick.randrange(1, 12)
    expected = [line for content in contents for line in content.splitlines(keepends=True)][-count:]
    assert _from(backlog_start(files, count, None, None), files).replace("|", "") == "".join(expected)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("content", "offset"), [("one\ntwo\n", 8), ("one\nhal", 4), ("half", 0), ("", 0)])
def test_zero_lines_begin_at_the_end_or_at_an_unfinished_line(tmp_path: Path, content: str, offset: int) -> None:
    assert backlog_start(_write(tmp_path, [content]), 0, None, None).offset == offset


def test_the_last_matches_are_counted_not_the_last_lines(tmp_path: Path) -> None:
    files = _write(tmp_path, ["hit 1\nmiss\nhit 2\n", "hit 3\n" + "miss\n" * 50])
    start = backlog_start(files, 2, Pattern("hit"), None)
    assert _from(start, files).startswith("hit 2\n|hit 3\n")


def test_since_skips_what_is_older_and_keeps_the_untimed_lines_that_follow(tmp_path: Path) -> None:
    now = time.time()
    stamp = [datetime.fromtimestamp(now - ago).strftime("%Y-%m-%d %H:%M:%S") for ago in (7200, 3600, 60)]
    text = f"[{stamp[0]} TP0] old\nuntimed old\n[{stamp[1]}] middle\n[{stamp[2]} TP3] new\nTraceback\n"
    files = _write(tmp_path, [text])
    assert _from(backlog_start(files, None, None, now - 120), files) == f"[{stamp[2]} TP3] new\nTraceback\n"
    assert _from(backlog_start(files, None, None, now + 60), files) == ""


def test_since_passes_over_files_that_were_last_written_before(tmp_path: Path) -> None:
    now = time.time()
    stamp = datetime.fromtimestamp(now).strftime("%Y-%m-%d %H:%M:%S")
    files = _write(tmp_path, [f"[{stamp}] a clock that was wrong\n", f"[{stamp}] now\n"])
    os.utime(files[0], (now - 9000, now - 9000))
    assert backlog_start(files, None, None, now - 60).path == files[1]


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("2026-01-31T12:00:00Z text", datetime(2026, 1, 31, 12, tzinfo=timezone.utc)),
        ("[2026-01-31 13:00:00,250+0100] text", datetime(2026, 1, 31, 12, tzinfo=timezone.utc)),
        ("[2026-01-31 12:00:00 TP0 DP1] text", datetime(2026, 1, 31, 12)),
        ("INFO:     127.0.0.1 - 2026-01-31 12:00:00", None),
        ("[2026-13-31 12:00:00]", None),
    ],
)
def test_times_are_read_as_loggers_write_them(line: str, at: datetime | None) -> None:
    assert logged_at(line.encode()) == (None if at is None else at.timestamp())
