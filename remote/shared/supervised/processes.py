"""A process pool with an owner: a killed worker is reported in a sentence, and a cut ends all workers."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess

from remote.shared.errors import HostError
from remote.shared.supervised import ENDING_SECONDS


@contextlib.contextmanager
def process_pool(count: int, *, preload: Sequence[str] = (), remedy: str = "") -> Iterator[ProcessPoolExecutor]:
    """Give the block a pool of `count` processes; a fork server imports the modules in `preload` once for all of them.

    If an exception leaves the block (a Ctrl-C, or a job's uncaught failure), queued jobs are cancelled and the workers
    are killed. Jobs must therefore write to temporary names until a file is whole. Raises HostError with `remedy` if a
    worker was killed from outside.
    """
    context = multiprocessing.get_context("forkserver" if preload else "spawn")
    if preload:
        context.set_forkserver_preload(list(preload))
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, context, initializer=_begin)
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        _kill([child for child in multiprocessing.active_children() if child not in before])
        if isinstance(error, BrokenProcessPool):
            why = "A worker process was killed, most likely for lack of memory."
            raise HostError(why, remedy=remedy) from error
        raise
    pool.shutdown(wait=True)


def _kill(workers: list[BaseProcess]) -> None:
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(ENDING_SECONDS / max(1, len(workers)))


def _begin() -> None:
    """Prepare a worker: it leaves Ctrl-C to its owner, and ends if its owner was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
