"""Complete lines with exact offsets, for any content of the file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from remote.logs import lines
from remote.logs.lines import LineReader


def _all(reader: LineReader) -> list[str]:
    found: list[str] = []
    while not reader.at_end:
        found += reader.read()
    return found


@pytest.mark.parametrize("seed", range(40))
def test_any_file_comes_back_line_by_line_and_from_any_reported_offset(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = random.Random(seed)
    monkeypatch.setattr(lines, "CHUNK_BYTES", pick.randrange(1, 20))
    log = tmp_path / "log"
    log.write_bytes("".join(pick.choice("xyé\n") for _ in range(40)).encode())
    expected = log.read_text().split("\n")[:-1]
    reader, found = LineReader(log), []
    while not reader.at_end:
        found += reader.read()
        if pick.random() < 0.3:
            offset = reader.offset
            reader.close()
            reader = LineReader(log, offset)
    assert found == expected


def test_a_line_is_held_back_until_its_newline_is_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("whole\nhal")
    reader = LineReader(log)
    assert _all(reader) == ["whole"]
    assert reader.offset == len("whole\n")
    with log.open("a") as more:
        more.write("f\n")
    assert _all(reader) == ["half"]


def test_the_last_line_of_a_finished_file_needs_no_newline(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("whole\nlast words")
    reader = LineReader(log)
    assert _all(reader) + reader.rest() == ["whole", "last words"]
    assert reader.offset == log.stat().st_size
    assert reader.rest() == []


def test_a_very_long_line_is_cut_and_says_how_much_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 100)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10)
    log = tmp_path / "log"
    log.write_text("before\n" + "x" * 1000 + "\nafter\n" + "y" * 30 + "\nend\n")
    reader = LineReader(log)
    assert _all(reader) == [
        "before",
        "x" * 10 + "… [990 bytes left out]",
        "after",
        "y" * 10 + "… [20 bytes left out]",
        "end",
    ]
    assert reader.offset == log.stat().st_size


def test_the_offset_stays_before_a_long_line_that_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10)
    log = tmp_path / "log"
    log.write_text("before\n" + "x" * 1000)
    reader = LineReader(log)
    assert _all(reader) == ["before"]
    assert reader.offset == len("before\n")


def test_bytes_that_are_no_utf8_do_not_stop_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"caf\xe9\n\xff\xfe\nna\xc3\xafve\n")
    assert _all(LineReader(log)) == ["caf\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}" * 2, "naïve"]


def test_a_file_emptied_in_place_is_noticed_even_when_it_has_grown_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\n")
    reader = LineReader(log)
    _all(reader)
    assert not reader.was_rewritten()
    log.write_text("other words, and more of them\n")
    assert reader.was_rewritten()
