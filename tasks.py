"""The command line: `inv --list`. Every task lives in `hosts/tasks/`, grouped by the part of the day it belongs to."""

from __future__ import annotations

from types import ModuleType

from invoke.collection import Collection
from invoke.tasks import Task

from hosts.tasks import reach

MODULES: tuple[ModuleType, ...] = (reach,)
"""Modules whose tasks are commands of their own, in the order of the day."""

namespace = Collection()
for module in MODULES:
    for member in vars(module).values():
        if isinstance(member, Task):
            namespace.add_task(member)
