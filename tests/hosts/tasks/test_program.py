"""The program's two names, `roost` and `inv`, and shell completion."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hosts.inventory.load import EXAMPLE, load_inventory
from hosts.inventory.model import Host

BIN = Path(sys.executable).parent
INVENTORY = """
groups: {east: [gpu1, gpu2]}
modes: {serve: {}, extract: {capture: true}}
defaults: {model: /m, layers: [1]}
hosts: {gpu1: {address: a}, gpu2: {address: b}, other: {address: c}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    (tmp_path / ".roost" / "runs" / "kimi-1").mkdir(parents=True)
    return tmp_path


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "roost", *words], cwd=folder, capture_output=True, text=True, check=False)


def test_roost_works_in_any_folder_and_names_itself_in_its_sentences(folder: Path) -> None:
    done = typed(folder, "extract", "--hosts", "all", "--run", "none")
    assert done.returncode == 2
    assert "roost plan" in done.stderr
    assert "inv plan" not in done.stderr


def test_help_names_the_program_that_is_typed(folder: Path) -> None:
    assert "Example: roost extract" in typed(folder, "--help", "extract").stdout
    listed = typed(folder, "help").stdout
    assert "roost deploy" in listed
    assert "inv deploy" not in listed


def test_a_task_whose_first_argument_is_positional_has_help_after_its_name_too(folder: Path) -> None:
    assert "Usage: roost" in typed(folder, "practice", "--help").stdout


@pytest.mark.parametrize("words", [("extrct",), ("--help", "extrct")])
def test_a_mistyped_task_is_answered_with_the_nearest_one(folder: Path, words: tuple[str, ...]) -> None:
    done = typed(folder, *words)
    assert (done.returncode, "'extract'" in done.stderr) == (2, True)


def test_init_writes_an_inventory_that_loads_and_never_overwrites_one(tmp_path: Path) -> None:
    assert typed(tmp_path, "init").returncode == 0
    first = (tmp_path / "inventory.yaml").read_bytes()
    assert load_inventory(tmp_path / "inventory.yaml").local.python == str(BIN / "python")
    assert b"`roost doctor --hosts all`" in first
    (tmp_path / "inventory.yaml").write_bytes(first + b"# mine")
    again = typed(tmp_path, "init")
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert (tmp_path / "inventory.yaml").read_bytes() == first + b"# mine"
    assert typed(tmp_path, "plan", "--hosts", "all", "--dataset", "none").returncode == 2


def test_the_example_inventory_explains_every_key_of_a_host() -> None:
    text = EXAMPLE.read_text()
    keys = set(Host.model_fields) - {"name"}
    assert {key for key in keys if not re.search(rf"^ *(# )?{key}:", text, re.MULTILINE)} == set()


def test_help_shows_the_default_of_an_option(folder: Path) -> None:
    assert "(default: 30)" in typed(folder, "--help", "stop").stdout


def test_a_list_of_tasks_whose_reader_is_gone_ends_without_a_traceback(folder: Path) -> None:
    script = f"{shlex.quote(str(BIN / 'roost'))} --list > pipe"
    os.mkfifo(folder / "pipe")
    child = subprocess.Popen(["sh", "-c", script], cwd=folder, stderr=subprocess.PIPE, text=True)
    (folder / "pipe").open().close()
    _, said = child.communicate()
    assert said == ""


COMPLETED = [
    ("roost status --hosts ", {"gpu1", "gpu2", "other", "east", "all"}),
    ("roost status --hosts gpu1,gp", {"gpu1,gpu1", "gpu1,gpu2"}),
    ("roost status --hosts=gpu1,gp", {"--hosts=gpu1,gpu2"}),
    ("roost extract --run ", {"kimi-1"}),
    ("roost serve --mode ex", {"extract"}),
    ("roost extract --paus", {"--pause"}),
    ("roost depl", {"deploy"}),
]

IN_SHELL = {
    "bash": r"""
source <(roost --print-completion-script bash)
COMP_WORDS=($LINE); [[ $LINE == *" " ]] && COMP_WORDS+=("")
_complete_roost roost "${COMP_WORDS[-1]}"; printf '%s\n' "${COMPREPLY[@]}"
""",
    "zsh": r"""
source <(roost --print-completion-script zsh); words=(${=LINE}); _complete_roost
last=""; [[ $LINE == *" " ]] || last=$words[-1]
for word in $reply; do [[ $word == $last* ]] && print -r -- $word; done; true
""",
    "fish": r"""
roost --print-completion-script fish | source; complete --do-complete "$LINE"
""",
}


@pytest.mark.parametrize("shell", IN_SHELL)
@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_each_shell_completes_tasks_options_and_values(folder: Path, shell: str, line: str, expected: set[str]) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed; type: sudo apt-get install {shell}")
    environment = {"PATH": f"{BIN}:/usr/bin:/bin", "LINE": line, "HOME": str(folder)}
    done = subprocess.run(
        [program, "-c", IN_SHELL[shell]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert expected <= set(done.stdout.split()), done.stderr


def test_an_inventory_that_cannot_be_read_completes_nothing_and_says_nothing(folder: Path) -> None:
    (folder / "inventory.yaml").write_text("hosts: [")
    done = typed(folder, "--complete", "--", "roost", "status", "--hosts")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
