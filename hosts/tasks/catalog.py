"""All tasks, grouped in the order in which a person uses them; read by `tasks.py` and `inv help`."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from invoke.tasks import Task

from hosts.tasks import (
    answers,
    attaching,
    data,
    delivery,
    extraction,
    history,
    practice,
    reach,
    results,
    servers,
    storage,
    tuning,
    viewing,
    watching,
)

GROUPS: tuple[tuple[str, ModuleType], ...] = (
    ("Reach the hosts", reach),
    ("Capture in SGLang", attaching),
    ("Data", data),
    ("Servers", servers),
    ("Answers of the model", answers),
    ("Extraction", extraction),
    ("Watch and report", viewing),
    ("Logs", watching),
    ("Who did what", history),
    ("Delivery", delivery),
    ("Results", results),
    ("The hosts' disks", storage),
    ("Modes and speed", tuning),
    ("Practice", practice),
)
"""Each group's title and the module that defines its tasks, in the order of use."""


def tasks_of(module: ModuleType) -> Iterator[Task[Any]]:
    """Yield the tasks that a module defines, in the order of their definition."""
    for member in vars(module).values():
        if isinstance(member, Task):
            yield member


def summary(task: Task[Any]) -> str:
    """Return the first line of a task's help."""
    return (task.__doc__ or "").strip().splitlines()[0]
