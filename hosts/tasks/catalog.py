"""Which tasks there are, grouped in the order of the day; `tasks.py` and `inv help` both read it."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from invoke.tasks import Task

from hosts.tasks import (
    attaching,
    data,
    delivery,
    extraction,
    practice,
    reach,
    results,
    servers,
    storage,
    tuning,
    watching,
)

GROUPS: tuple[tuple[str, ModuleType], ...] = (
    ("Reach the hosts", reach),
    ("Capture in SGLang", attaching),
    ("Data", data),
    ("Servers", servers),
    ("Extraction", extraction),
    ("Logs", watching),
    ("Delivery", delivery),
    ("Results", results),
    ("The hosts' disks", storage),
    ("Modes and speed", tuning),
    ("Practice", practice),
)
"""A title and the module whose tasks stand under it, in the order in which they are used."""


def tasks_of(module: ModuleType) -> Iterator[Task[Any]]:
    """The tasks that a module defines, in its order."""
    for member in vars(module).values():
        if isinstance(member, Task):
            yield member


def summary(task: Task[Any]) -> str:
    """A task's first line of help."""
    return (task.__doc__ or "").strip().splitlines()[0]
