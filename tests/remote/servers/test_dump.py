"""A dump directory is claimed by a marker, and never emptied without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote.servers.housekeeping import dump
from remote.shared.errors import HostError
from remote.shared.paths import DUMP_MARKER


def test_a_claimed_directory_is_emptied_down_to_its_marker(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    dump.claim(folder, "mark#1")
    (folder / "a.safetensors").write_bytes(b"x" * 10)
    (folder / "deeper").mkdir()
    (folder / "deeper" / "b").write_bytes(b"y" * 5)
    assert dump.empty(folder) == 15
    assert [path.name for path in folder.iterdir()] == [DUMP_MARKER]
    assert dump.claimed_by(folder) == "mark#1"


def test_a_directory_with_other_peoples_files_is_neither_claimed_nor_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(HostError, match="not Roost's"):
        dump.claim(tmp_path, "mark#1")
    assert dump.empty(tmp_path) == 0
    assert (tmp_path / "thesis.tex").exists()


def test_a_link_to_somewhere_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(HostError, match="a link"):
        dump.claim(tmp_path / "link", "mark#1")


def test_a_link_inside_is_removed_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    folder = tmp_path / "dumps"
    dump.claim(folder, "mark#1")
    (folder / "link").symlink_to(tmp_path / "outside")
    dump.empty(folder)
    assert (tmp_path / "outside" / "kept").exists()


def test_sweeping_removes_what_a_dead_writer_left_and_keeps_whole_dumps(tmp_path: Path) -> None:
    dump.claim(tmp_path / "dumps", "mark#1")
    (tmp_path / "dumps" / ".aside-1-x").touch()
    (tmp_path / "dumps" / "whole.safetensors").touch()
    dump.sweep(tmp_path / "dumps")
    assert sorted(path.name for path in (tmp_path / "dumps").iterdir()) == [DUMP_MARKER, "whole.safetensors"]
