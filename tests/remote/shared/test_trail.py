"""The trail file: whole lines from many processes at once, bounded, and readable when a line is damaged."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from remote.shared import trail as trails
from remote.shared.errors import ForeignFileError
from remote.shared.messages.envelope import Typed
from remote.shared.messages.trail import Step
from remote.shared.trail import LONGEST_LINE, Command, Trail


def step(number: int, words: str = "serve --hosts all") -> Step:
    return Step(at=float(number), typed=Typed(id=f"{number:06d}", words=words), operator="ana@laptop")


def write(path: Path, first: int) -> None:
    for number in range(first, first + 200):
        Trail(path).append(step(number))


def test_processes_that_write_at_once_never_mix_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trails, "LIMIT_BYTES", 64 << 10)
    path = tmp_path / "trail.jsonl"
    workers = [multiprocessing.Process(target=write, args=(path, first)) for first in (0, 1000, 2000, 3000)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    read = Trail(path).read()
    assert read.damaged == 0
    assert len({found.typed.id for found in read.steps}) == len(read.steps) > 300


def test_a_full_file_is_put_aside_once_and_both_stay_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trails, "LIMIT_BYTES", 4096)
    trail = Trail(tmp_path / "trail.jsonl")
    for number in range(200):
        trail.append(step(number))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 3 * 4096
    read = trail.read()
    assert read.steps[-1].at == 199.0
    assert [found.at for found in read.steps] == sorted(found.at for found in read.steps)


def test_a_damaged_line_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    trail = Trail(tmp_path / "trail.jsonl")
    trail.append(step(1))
    with (tmp_path / "trail.jsonl").open("ab") as file:
        file.write(b'{"at": 2, "typed"\n\x00\xff\n')
    trail.append(step(3))
    read = trail.read()
    assert ([found.at for found in read.steps], read.damaged) == ([1.0, 3.0], 2)
    assert [found.at for found in trail.read(since=2.0).steps] == [3.0]


def test_a_command_of_any_length_is_one_bounded_line(tmp_path: Path) -> None:
    Trail(tmp_path / "trail.jsonl").append(step(1, "prepare " + "x" * 100_000))
    assert (tmp_path / "trail.jsonl").stat().st_size <= LONGEST_LINE
    assert Trail(tmp_path / "trail.jsonl").read().steps[0].typed.words.startswith("prepare xxx")


def test_only_the_owner_can_read_it_and_a_link_is_never_followed(tmp_path: Path) -> None:
    trail = Trail(tmp_path / "trail.jsonl")
    trail.append(step(1))
    assert (tmp_path / "trail.jsonl").stat().st_mode & 0o777 == 0o600
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    (tmp_path / "trail.jsonl").unlink()
    (tmp_path / "trail.jsonl").symlink_to(elsewhere)
    with pytest.raises(ForeignFileError):
        trail.append(step(2))
    assert elsewhere.read_text() == ""


def test_an_unwritable_trail_is_reported_and_ends_no_command(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trail.jsonl")
    command = Command(Trail(tmp_path / "trail.jsonl"), Typed(id="a", words="stop"), "ana@laptop")
    command.end("ok")
    assert "could not be written" in command.lost
