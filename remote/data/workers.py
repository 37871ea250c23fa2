"""Runs a list of tasks on all cores, in processes that end with their starter.

Called by the data verbs. Results come in the order of the tasks, so that what is made does not depend on timing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from remote.shared.supervised import threads
from remote.shared.supervised.processes import process_pool

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    function: Callable[[Task], Answer], tasks: Iterable[Task], *, processes: int, preload: list[str]
) -> Iterator[Answer]:
    """Yield `function(task)` for each task, in order, at most a few tasks ahead of the reader.

    With one process the work is done here. `preload` names modules that the workers share: a fork server imports
    them once. Raises what `function` raises; HostError where a worker was killed.
    """
    if processes <= 1:
        yield from map(function, tasks)
        return
    remedy = "Run again with fewer --processes; what was done is kept."
    with process_pool(processes, preload=preload, remedy=remedy) as pool:
        yield from threads.in_order(pool, function, tasks, ahead=2 * processes)
