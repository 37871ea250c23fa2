"""Output on the terminals that people have: no UTF-8, no colour, narrow, or gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[3]
INV = Path(sys.executable).with_name("inv")
INVENTORY = "hosts: {gpu1: {connection: local, python: /nonexistent/python, layers: [3]}}\n"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return path


def inv(inventory: Path, *words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return subprocess.run(
        [INV, *words],
        cwd=CLONE,
        env={**kept, "ROOST_INVENTORY": str(inventory), **env},
        capture_output=True,
        check=False,
    )


def test_a_terminal_without_utf_8_gets_ascii_marks(inventory: Path) -> None:
    done = inv(inventory, "deploy", "--host", "gpu1", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert done.returncode == 1
    assert done.stderr.startswith(b"FAILED gpu1: ")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("forced", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_is_obeyed(inventory: Path, forced: dict[str, str], coloured: bool) -> None:
    done = inv(inventory, "deploy", "--host", "gpu1", FORCE_COLOR="1", TERM="xterm-256color", **forced)
    assert (b"\x1b[31m" in done.stderr) is coloured


def test_the_list_of_tasks_splits_no_word_at_sixty_columns(inventory: Path) -> None:
    done = inv(inventory, "help", COLUMNS="60")
    lines = done.stdout.decode().splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.split()[:2] == ["inv", "diff-modes"] for line in lines)


def test_a_closed_pipe_gives_no_traceback(inventory: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([INV, "help"], cwd=CLONE, stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_an_inventory_above_the_current_folder_is_found_and_named(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    tasks = "from hosts.tasks.overview import collection\nnamespace = collection()\n"
    (tmp_path / "tasks.py").write_text(f"import sys\nsys.path.insert(0, {str(CLONE)!r})\n{tasks}")
    deep = tmp_path / "data" / "kimi"
    deep.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if name != "ROOST_INVENTORY"}
    done = subprocess.run(
        [INV, "deploy", "--host", "gpu2"], cwd=deep, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"Inventory: {tmp_path / 'inventory.yaml'}"
    assert "Did you mean 'gpu1'?" in done.stderr
