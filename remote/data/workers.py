"""All cores on a list of tasks: processes for work in Python, ended with whoever started them.

Called by the data verbs. Results come in the order of the tasks, so that what is made does not depend on timing.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from remote.shared.errors import HostError

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def cores() -> int:
    """Cores that this process may use."""
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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preload)
    pool = ProcessPoolExecutor(processes, context, initializer=_end_with_parent)
    try:
        yield from _windowed(pool, function, tasks, ahead=2 * processes)
    except BrokenProcessPool as error:
        raise HostError(
            "A worker process was killed, most likely for want of memory.",
            remedy="Run again with fewer --processes; what was done is kept.",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _windowed(
    pool: ProcessPoolExecutor, function: Callable[[Task], Answer], tasks: Iterable[Task], ahead: int
) -> Iterator[Answer]:
    waiting: deque[Future[Answer]] = deque()
    for task in tasks:
        waiting.append(pool.submit(function, task))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _end_with_parent() -> None:
    """A worker whose starter was killed would wait for tasks for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
