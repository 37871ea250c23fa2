"""Pools of threads, and waiting for their jobs. The threads are daemons, as in `threads`."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from remote.shared.supervised import ATTENTION_SECONDS, ENDING_SECONDS
from remote.shared.supervised.threads import DeadlineError, Thread

T = TypeVar("T")
Item = TypeVar("Item")
P = ParamSpec("P")


class Pool(Executor):
    """A few threads that run jobs; a job's exception goes to its future.

    If an exception leaves the block, jobs that have not begun are cancelled and the exception is raised at once.
    Otherwise the block waits for all jobs. A pool with `settles` also waits for the running jobs after an error, for
    at most `ENDING_SECONDS`: its owner removes what these jobs write. After a Ctrl-C no pool waits. `asyncio` accepts a
    pool wherever it accepts an executor.
    """

    def __init__(self, count: int, name: str, *, settles: bool = False) -> None:
        self._settles = settles
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._futures: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [Thread(self._run, f"{name}-{number}") for number in range(count)]

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a job; raises RuntimeError once the pool is closed."""
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            if self._closed:
                raise RuntimeError("The pool is closed.")
            self._futures.add(future)
            self._jobs.put(job)
        future.add_done_callback(self._forget)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more jobs; with `cancel_futures`, cancel the jobs that have not begun.

        With `wait`, return once the last job is done, however long that takes. With `cancel_futures` as well, a job
        that still runs after `ENDING_SECONDS` is left to its daemon thread.
        """
        with self._lock:
            self._closed = True
            futures = list(self._futures)
        if cancel_futures:
            for future in futures:
                future.cancel()
        for _ in self._threads:
            self._jobs.put(None)
        ends_at = time.monotonic() + ENDING_SECONDS if cancel_futures else None
        for thread in self._threads if wait else []:
            while thread.alive and (ends_at is None or time.monotonic() < ends_at):
                _join_a_while(thread)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        waits = error is None or (self._settles and isinstance(error, Exception))
        self.shutdown(wait=waits, cancel_futures=error is not None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(future)


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Await `function(*arguments)` on a thread of its own; the end of the event loop does not wait for that thread."""
    import asyncio  # 30 ms, which a verb without an event loop must not pay

    pool = Pool(1, getattr(function, "__name__", "call"))
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def as_finished(jobs: Iterable[Future[T]]) -> Iterator[Future[T]]:
    """Yield jobs as they finish, like `concurrent.futures.as_completed`, without losing a Ctrl-C.

    A Ctrl-C between Python's last check for signals and the kernel's wait is only noticed after that wait.
    """
    pending = set(jobs)
    while pending:
        done, pending = wait(pending, ATTENTION_SECONDS, FIRST_COMPLETED)
        yield from done


def in_order(pool: Executor, function: Callable[[Item], T], items: Iterable[Item], *, ahead: int) -> Iterator[T]:
    """Yield `function(item)` for each item in order, with at most `ahead` jobs given to the pool at once."""
    waiting: deque[Future[T]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) >= ahead:
            yield outcome(waiting.popleft())
    while waiting:
        yield outcome(waiting.popleft())


def outcome(job: Future[T]) -> T:
    """Wait for the job and return its result; wakes twice a second, so that a Ctrl-C is noticed."""
    while not job.done():
        wait([job], ATTENTION_SECONDS)
    return job.result()


def _join_a_while(thread: Thread) -> None:
    try:
        thread.join(ATTENTION_SECONDS)
    except DeadlineError:
        return
