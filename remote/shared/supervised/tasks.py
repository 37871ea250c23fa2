"""Asyncio tasks with an owner: either a block that waits for them, or a callback that gets an unexpected end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from remote.shared.supervised import ATTENTION_SECONDS, ENDING_SECONDS

T = TypeVar("T")


class EndedError(RuntimeError):
    """Work that should run until it is cancelled returned instead."""


def start(
    coroutine: Coroutine[Any, Any, T], name: str, on_end: Callable[[BaseException], None], *, endless: bool = False
) -> asyncio.Task[T]:
    """Start a task; `on_end` gets an exception in it, and an EndedError if an `endless` task returns.

    A cancelled task ends as its owner wishes, so `on_end` is not called.
    """
    task = asyncio.create_task(coroutine, name=name)

    def ended(_: asyncio.Task[T]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None and endless:
            error = EndedError(f"{name} ended without an error")
        if error is not None:
            on_end(error)

    task.add_done_callback(ended)
    return task


async def together(*coroutines: Coroutine[Any, Any, T]) -> list[T]:
    """Run coroutines concurrently and return their results in order; the first exception cancels the others.

    The coroutines set their own deadlines.
    """
    async with Tasks() as tasks:
        running = [tasks.start(one, getattr(one, "__qualname__", "a coroutine")) for one in coroutines]
        if running:
            await asyncio.wait(running)
    return [task.result() for task in running]


class Tasks:
    """An `async with` block that owns tasks: no task outlives the block.

    The first unexpected end of a task cancels the body of the block, and the block raises that task's error. At the end
    of the block, the remaining tasks are cancelled and awaited for at most `ENDING_SECONDS`.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._owner: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None
        self._cuts = 0

    async def __aenter__(self) -> Tasks:
        self._owner = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        owner, self._owner = self._owner, None
        await self._cancel()
        if self._failure is None:
            return
        if error is not None and not (isinstance(error, asyncio.CancelledError) and self._cuts):
            return  # the body's own exception takes precedence
        if owner is not None and hasattr(owner, "uncancel"):  # Python 3.11: undo our own cancellation
            for _ in range(self._cuts):
                owner.uncancel()
        raise self._failure

    def start(self, coroutine: Coroutine[Any, Any, T], name: str, *, endless: bool = False) -> asyncio.Task[T]:
        """Start a task of this block; an `endless` task fails the block even if it returns."""
        task = start(coroutine, name, self._failed, endless=endless)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _failed(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._cut()

    def _cut(self) -> None:
        """Cancel the body repeatedly: `asyncio.wait_for` up to Python 3.11 can lose a cancellation."""
        if self._owner is not None and not self._owner.done():
            self._cuts += 1
            self._owner.cancel()
            asyncio.get_running_loop().call_later(ATTENTION_SECONDS, self._cut)

    async def _cancel(self) -> None:
        """Cancel the remaining tasks and wait for them; tasks that do not end are left behind and named."""
        left = {task for task in self._tasks if not task.done()}
        for task in left:
            task.cancel()
        if not left:
            return
        _, hanging = await asyncio.wait(left, timeout=ENDING_SECONDS)
        if hanging:
            names = ", ".join(sorted(task.get_name() for task in hanging))
            self._failure = self._failure or EndedError(f"{names} did not end within {ENDING_SECONDS:.0f} s")
