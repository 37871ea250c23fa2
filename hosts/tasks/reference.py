"""`make docs`: the reference page of every task, from the texts that `inv --help TASK` prints. Laptop's side.

`python -m hosts.tasks.reference FOLDER` lays out the site's source in FOLDER: the repository's own pages where they
are in the clone, so that their links hold, and `docs/tasks.md` from here. Writes nothing else.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from invoke.parser.argument import Argument
from invoke.tasks import Task

from hosts.practice.paths import CODE
from hosts.tasks.catalog import GROUPS, tasks_of

PAGES = ("*.md", "docs/*.md", "docs/*.png", "docs/*.svg", "docs/*.json", "benchmarks/results/*.md")


def lay_out(folder: Path) -> None:
    """Write the site's source into `folder`, replacing an earlier one."""
    shutil.rmtree(folder, ignore_errors=True)
    for page in (page for pattern in PAGES for page in CODE.glob(pattern)):
        target = folder / page.relative_to(CODE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)
    (folder / "docs" / "tasks.md").write_text(reference(), encoding="utf-8")


def reference() -> str:
    """Return the page: each group of tasks in the order of use, each task with its options and an example."""
    return "\n".join(("# Every task", "", *(line for group in GROUPS for line in _group(*group))))


def _group(title: str, module: Any) -> Iterator[str]:
    yield f"## {title}\n"
    for task in tasks_of(module):
        yield from _task(task)


def _task(task: Task[Any]) -> Iterator[str]:
    text, _, example = (task.__doc__ or "").strip().partition("\n\nExample: ")
    yield f"### inv {task.name}\n\n{text}\n\n```\n{example}\n```\n"
    yield "| option | what it does |\n|---|---|"
    for argument in task.get_arguments():
        yield f"| `{_flags(argument)}` | {_cell(argument.help or '')} |"
    yield ""


def _flags(argument: Argument) -> str:
    if argument.positional:
        return str(argument.name).upper()
    numeric = type(argument.default) in (int, float)
    value = "" if argument.kind is bool else " N" if numeric else " TEXT"
    return ", ".join(("-" if len(name) == 1 else "--") + name for name in argument.names) + value


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
