"""The verb as a process: backlog, follow, restart, rotation, and going on at the exact byte."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remote.logs.conftest import LogFolder, LogsProcess

Start = Callable[..., LogsProcess]


def test_the_last_lines_come_back_and_the_call_ends(hostile_workdir: Path, logs_of: Start) -> None:
    LogFolder(hostile_workdir).write(1, "one\ntwo\nthree\n")
    ended = logs_of(hostile_workdir, lines=2).finish()
    assert ended.lines == ["two", "three"]
    assert ended.result is not None
    assert ended.result.positions[0].offset == len("one\ntwo\nthree\n")


def test_a_dead_server_s_unfinished_last_line_is_shown(tmp_path: Path, logs_of: Start) -> None:
    LogFolder(tmp_path).write(1, "one\nKilled")
    assert logs_of(lines=5).finish().lines == ["one", "Killed"]


def test_without_a_log_the_call_fails_with_one_sentence(logs_of: Start) -> None:
    ended = logs_of(sources=[{"kind": "server", "name": "other"}]).finish()
    assert ended.failure is not None
    assert ended.failure.kind == "host"
    assert "server 'other'" in ended.failure.message


@pytest.mark.parametrize("name", ["../../etc", "a/b", ""])
def test_a_name_that_leaves_the_workdir_is_refused(logs_of: Start, name: str) -> None:
    ended = logs_of(sources=[{"kind": "run", "name": name}]).finish()
    assert ended.failure is not None
    assert ended.failure.kind == "usage"


def test_a_broken_pattern_is_a_usage_error(tmp_path: Path, logs_of: Start) -> None:
    LogFolder(tmp_path).write(1, "one\n")
    ended = logs_of(grep="(").finish()
    assert ended.failure is not None
    assert ended.failure.kind == "usage"
    assert ended.process.returncode == 2


def test_following_begins_before_the_file_exists(tmp_path: Path, logs_of: Start) -> None:
    following = logs_of(follow=True, sources=[{"kind": "server", "name": "main"}])
    following.until(lambda: bool(following.notices))
    LogFolder(tmp_path).write(1, "first\n")
    following.until(lambda: bool(following.lines))
    assert following.lines == ["first"]


def test_a_server_that_appears_later_joins_in(tmp_path: Path, logs_of: Start) -> None:
    LogFolder(tmp_path, "one").write(1, "from one\n")
    following = logs_of(follow=True)
    following.until(lambda: following.lines == ["from one"])
    LogFolder(tmp_path, "two").write(1, "from two\n")
    following.until(lambda: len(following.lines) == 2)
    assert following.lines == ["from one", "from two"]


def test_only_whole_lines_are_given_out(tmp_path: Path, logs_of: Start) -> None:
    log = LogFolder(tmp_path)
    log.write(1, "whole\nha")
    following = logs_of(follow=True)
    following.until(lambda: following.lines == ["whole"])
    log.write(1, "lf\n")
    following.until(lambda: len(following.lines) == 2)
    assert following.lines == ["whole", "half"]


def test_restarts_are_followed_in_order_and_named(tmp_path: Path, logs_of: Start) -> None:
    log = LogFolder(tmp_path)
    log.write(1, "one\n")
    following = logs_of(follow=True)
    following.until(lambda: following.lines == ["one"])
    log.write(1, "last words without a newline")
    for start in range(2, 12):
        log.write(start, f"start {start}\n")
    following.until(lambda: "start 11" in following.lines)
    expected = ["one", "last words without a newline", *(f"start {start}" for start in range(2, 12))]
    assert following.lines == expected
    assert following.notices[0] == "main_v1.log ended; main_v2.log follows."
    assert len(following.notices) == 10


def test_a_rotated_extractor_log_is_read_to_its_end_before_the_new_one(tmp_path: Path, logs_of: Start) -> None:
    folder = tmp_path / "runs" / "r1"
    folder.mkdir(parents=True)
    log = folder / "extract.log"
    log.write_text("one\n")
    following = logs_of(follow=True, sources=[{"kind": "run", "name": "r1"}])
    following.until(lambda: following.lines == ["one"])
    with log.open("a") as still_open:
        log.rename(folder / "extract.log.1")
        still_open.write("written after the rename\n")
    log.write_text("two\n")
    following.until(lambda: following.lines[-1] == "two")
    assert following.lines == ["one", "written after the rename", "two"]


def test_a_cluster_s_run_has_the_logs_of_its_replicas(tmp_path: Path, logs_of: Start) -> None:
    jobs = tmp_path / "runs" / "r1" / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "r0.log").write_text("of replica 0\n")
    (jobs / "r1.log").write_text("of replica 1\n")
    shown = logs_of(sources=[{"kind": "run", "name": "r1"}]).finish()
    assert sorted(shown.lines) == ["of replica 0", "of replica 1"]


def test_a_log_emptied_in_place_is_read_from_its_beginning(tmp_path: Path, logs_of: Start) -> None:
    log = LogFolder(tmp_path)
    log.write(1, "one\ntwo\n")
    following = logs_of(follow=True)
    following.until(lambda: len(following.lines) == 2)
    log.path(1).write_text("new\n")
    following.until(lambda: following.lines[2:] == ["new"])
    assert any("emptied" in notice for notice in following.notices)


def test_the_process_ends_when_the_laptop_hangs_up(tmp_path: Path, logs_of: Start) -> None:
    LogFolder(tmp_path).write(1, "one\n")
    following = logs_of(follow=True)
    following.until(lambda: following.lines == ["one"])
    assert following.hang_up() == 130


def test_grep_shows_matches_only_and_moves_on_without_any(tmp_path: Path, logs_of: Start) -> None:
    log = LogFolder(tmp_path)
    log.write(1, "hit 1\nmiss\nhit 2\nmiss\n")
    following = logs_of(follow=True, grep="hit|caf.", lines=1)
    following.until(lambda: following.lines == ["hit 2"])
    log.write(1, "miss\n" * 100)
    following.until(lambda: following.resume["main"].offset == log.path(1).stat().st_size)
    log.write(1, "café\n")
    following.until(lambda: len(following.lines) == 2)
    assert following.lines == ["hit 2", "café"]


def test_a_reconnect_goes_on_at_the_exact_byte(tmp_path: Path, logs_of: Start) -> None:
    log = LogFolder(tmp_path)
    log.write(1, "one\ntwo\n")
    before = logs_of(follow=True)
    before.until(lambda: len(before.lines) == 2)
    log.write(1, "three, half of")
    before.kill()
    log.write(1, " it\n")
    log.write(2, "four\n")
    after = logs_of(follow=True, resume=before.resumption)
    after.until(lambda: len(after.lines) == 2)
    assert after.lines == ["three, half of it", "four"]


def test_a_reconnect_finds_its_file_under_the_name_that_rotation_gave_it(tmp_path: Path, logs_of: Start) -> None:
    folder = tmp_path / "runs" / "r1"
    folder.mkdir(parents=True)
    log = folder / "extract.log"
    log.write_text("one\ntwo\n")
    source = {"kind": "run", "name": "r1"}
    before = logs_of(follow=True, sources=[source], lines=1)
    before.until(lambda: before.lines == ["two"])
    before.kill()
    with log.open("a") as more:
        more.write("three\n")
    log.rename(folder / "extract.log.1")
    (folder / "extract.log.1").rename(folder / "extract.log.2")
    (folder / "extract.log.1").write_text("four\n")
    log.write_text("five\n")
    resume = before.resumption
    after = logs_of(follow=True, sources=[source], resume=resume)
    after.until(lambda: len(after.lines) == 3)
    assert after.lines == ["three", "four", "five"]


def test_files_that_appeared_during_a_disconnection_are_shown_completely(tmp_path: Path, logs_of: Start) -> None:
    LogFolder(tmp_path, "early").folder.mkdir(parents=True)
    before = logs_of(follow=True, lines=1)
    before.until(lambda: before.started)
    before.kill()
    LogFolder(tmp_path, "early").write(1, "one\ntwo\nthree\n")
    LogFolder(tmp_path, "late").write(1, "four\nfive\n")
    after = logs_of(follow=True, lines=1, resume=before.resumption)
    after.until(lambda: len(after.lines) == 5)
    assert after.lines == ["one", "two", "three", "four", "five"]


def test_a_call_cut_before_its_first_line_begins_at_the_same_byte(tmp_path: Path, logs_of: Start) -> None:
    log = LogFolder(tmp_path)
    log.write(1, "one\ntwo\n")
    before = logs_of(follow=True, lines=1)
    before.until(lambda: before.started)
    before.kill()
    log.write(1, "three\n")
    after = logs_of(follow=True, lines=1, resume=before.resumption)
    after.until(lambda: len(after.lines) == 2)
    assert after.lines == ["two", "three"]


def test_a_reconnect_says_so_when_its_file_is_gone(tmp_path: Path, logs_of: Start) -> None:
    log = LogFolder(tmp_path)
    log.write(1, "one\n")
    log.write(2, "two\n")
    before = logs_of(follow=True)
    before.until(lambda: before.lines == ["one", "two"])
    before.kill()
    log.path(2).unlink()
    log.write(3, "three\n")
    after = logs_of(follow=True, resume=before.resumption)
    after.until(lambda: after.lines == ["three"])
    assert "main_v2.log was removed" in after.notices[0]


def test_an_inode_used_again_is_not_mistaken_for_the_old_file(tmp_path: Path, logs_of: Start) -> None:
    log = LogFolder(tmp_path)
    log.write(1, "one\ntwo\n")
    before = logs_of(follow=True)
    before.until(lambda: len(before.lines) == 2)
    before.kill()
    log.path(1).write_text("another life\nof the same inode\n")
    after = logs_of(follow=True, resume=before.resumption)
    after.until(lambda: len(after.lines) == 2)
    assert after.lines == ["another life", "of the same inode"]
    assert after.notices


@pytest.mark.parametrize("seed", range(3))
def test_no_line_is_lost_or_doubled_over_many_cuts_while_a_writer_writes(
    tmp_path: Path, logs_of: Start, seed: int
) -> None:
    pick = random.Random(seed)
    written = [f"line {number} " + "é" * pick.randrange(60) for number in range(3000)]
    content = "".join(f"{line}\n" for line in written).encode()
    log = LogFolder(tmp_path)
    log.write(1, "")

    def write() -> None:
        at, start = 0, 1
        while at < len(content):
            piece = content[at : at + pick.randrange(1, 3000)]
            at += len(piece)
            log.write(start, piece)
            if piece.endswith(b"\n") and pick.random() < 0.5:
                start += 1

    writer = threading.Thread(target=write)
    writer.start()
    got: list[str] = []
    resume: list[dict[str, object]] | None = None
    while len(got) < len(written):
        following = logs_of(follow=True, lines=None, resume=resume)
        wanted = min(len(written) - len(got), pick.randrange(1, 900))
        following.until(lambda: len(following.lines) >= wanted)  # noqa: B023
        following.kill()
        got += following.lines
        resume = following.resumption
    writer.join()
    assert got == written


def test_a_backlog_of_a_hundred_thousand_lines_comes_whole(tmp_path: Path, logs_of: Start) -> None:
    written = [f"[2026-01-31 12:00:00 TP0] Prefill batch, #new-token: {number}" for number in range(100_000)]
    LogFolder(tmp_path).write(1, "".join(f"{line}\n" for line in written))
    assert logs_of(lines=None).finish().lines == written


@pytest.mark.parametrize("lines", [None, 5])
def test_a_pattern_that_searches_for_ever_is_given_up_in_one_sentence(
    tmp_path: Path, logs_of: Start, lines: int | None
) -> None:
    LogFolder(tmp_path).write(1, "a" * 60 + "!\n")
    ended = logs_of(grep="(a|aa)+$", lines=lines).finish()
    assert ended.failure is not None
    assert "was still searching one line after 1 s" in ended.failure.message
