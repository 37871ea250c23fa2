"""Runs a list of tasks on all cores, in processes that end if their parent ends.

Called by the data verbs. Results come in the order of the tasks, so that a dataset does not depend on timing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from remote.shared.supervised import pools
from remote.shared.supervised.processes import process_pool

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    function: Callable[[Task], Answer], tasks: Iterable[Task], *, processes: int, preload: list[str]
) -> Iterator[Answer]:
    """Yield `function(task)` for each task, in order. The processes are at most a few tasks ahead of the reader.

    With one process the tasks run in this process. `preload` names modules that a fork server imports once for all
    workers. Raises the errors of `function`, and HostError if a worker was killed.
    """
    if processes <= 1:
        yield from map(function, tasks)
        return
    remedy = "Run again with fewer --processes; finished work is kept."
    with process_pool(processes, preload=preload, remedy=remedy) as pool:
        yield from pools.in_order(pool, function, tasks, ahead=2 * processes)
