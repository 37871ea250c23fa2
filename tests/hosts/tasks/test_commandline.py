"""What people type: numbers, repeated options, words that are nearly right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from invoke.context import Context

from hosts.errors import UsageError
from hosts.tasks.catalog import GROUPS, tasks_of
from hosts.tasks.commandline import number, whole
from hosts.tasks.session import roost_task

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("4k", 4000),
        ("4K", 4096),
        ("1.5k", 1500),
        ("1e6", 1e6),
        (" 2m", 2e6),
        ("4_096", 4096),
        ("-3", -3),
    ],
)
def test_numbers_as_people_write_them(text: str, value: float) -> None:
    assert number("--rate", text) == value


@pytest.mark.parametrize("text", ["", "k", "4x", "many", "4,096", "1.2.3", "0x10", "nan", "4kk", "e5", "."])
def test_a_word_that_is_no_number_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"--max-len '.*' is not a number\."):
        number("--max-len", text)


def test_a_count_is_whole() -> None:
    assert whole("--repetitions", "1.5k") == 1500
    with pytest.raises(UsageError, match=r"--repetitions '1.5' is not a whole number\."):
        whole("--repetitions", "1.5")


def test_a_task_gets_values_and_not_words(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []

    @roost_task(example="inv probe")
    def probe(context: Context, host: str | None = None, max_len: int = 0, rate: float = 0.5, out: str = "") -> None:
        """Keep what it was given."""
        seen.append((host, max_len, rate, out))

    probe(Context(), host=["a", "b,c"], max_len="4k", rate="1.5k", out="8")
    probe(Context(), host=[], max_len=7)
    assert seen == [("a,b,c", 4000, 1500.0, "8"), (None, 7, 0.5, "")]
    with pytest.raises(SystemExit) as raised:
        probe(Context(), max_len="long")
    assert raised.value.code == 2
    assert "--max-len 'long' is not a number." in capsys.readouterr().err


def inv(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("inv"), *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["extrct", "--hosts", "all"], "There is no task 'extrct'. Did you mean 'extract'?"),
        (["extract", "--hots", "all"], "extract has no option '--hots'. Did you mean '--hosts'?"),
        (["extract", "--quux"], "extract has no option '--quux'. Its options: inv --help extract."),
        (["extract", "--run", "a", "--run", "b"], "--run was given twice; give it once."),
        (["doctor", "--host", "gpu1", "--host", "gpu3"], "There is no host or group 'gpu3'.\n    Did you mean 'gpu2'?"),
        (["prepare", "--max-len", "long"], "--max-len 'long' is not a number."),
    ],
)
def test_a_mistyped_command_line_says_what_would_be_right(words: list[str], said: str) -> None:
    done = inv(*words)
    assert said in done.stderr
    assert (done.returncode, done.stdout) == (2, "")


def test_every_task_has_an_example_in_its_help() -> None:
    tasks = [task for _, module in GROUPS for task in tasks_of(module)]
    assert len(tasks) > 20
    for task in tasks:
        name = (task.name or "").replace("_", "-")
        example = (task.__doc__ or "").splitlines()[-1]
        assert example.startswith(f"Example: inv {name} "), task.name
        options = {word.partition("=")[0] for word in example.split() if word.startswith("-")}
        known = {
            f"-{'-' if len(part) > 1 else ''}{part}" for argument in task.get_arguments() for part in argument.names
        }
        assert options <= known
