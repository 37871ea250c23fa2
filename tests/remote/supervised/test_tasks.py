"""Asyncio tasks of a block: an unexpected end reaches the block, and nothing outlives it."""

from __future__ import annotations

import asyncio

import pytest

from remote.shared.supervised.tasks import EndedError, Tasks, start


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def for_ever() -> None:
    await asyncio.Event().wait()


def test_a_failing_task_ends_the_body_that_waits_for_something_else() -> None:
    async def block() -> None:
        async with Tasks() as tasks:
            tasks.start(fail(KeyError("weight_scale")), "parity")
            await for_ever()

    with pytest.raises(KeyError, match="weight_scale"):
        asyncio.run(asyncio.wait_for(block(), 10))


def test_an_endless_task_that_returns_is_named() -> None:
    async def block() -> None:
        async with Tasks() as tasks:
            tasks.start(asyncio.sleep(0), "the beats", endless=True)
            await for_ever()

    with pytest.raises(EndedError, match="the beats ended without an error"):
        asyncio.run(asyncio.wait_for(block(), 10))


def test_the_other_tasks_are_cancelled_and_have_ended_when_the_block_ends() -> None:
    ended: list[str] = []

    async def tidy(name: str) -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(0.01)
            ended.append(name)

    async def block() -> None:
        async with Tasks() as tasks:
            for name in ("a", "b"):
                tasks.start(tidy(name), name)
            await asyncio.sleep(0)
            tasks.start(fail(ValueError("c")), "c")
            await for_ever()

    with pytest.raises(ValueError, match="c"):
        asyncio.run(block())
    assert sorted(ended) == ["a", "b"]


def test_a_body_that_ends_cancels_the_remaining_tasks_without_an_error() -> None:
    async def block() -> str:
        async with Tasks() as tasks:
            task = tasks.start(for_ever(), "endless", endless=True)
            await asyncio.sleep(0)
        assert task.cancelled()
        return "done"

    assert asyncio.run(block()) == "done"


def test_a_task_that_its_owner_cancels_is_no_failure() -> None:
    async def block() -> str:
        async with Tasks() as tasks:
            task = tasks.start(for_ever(), "given up")
            task.cancel()
            await asyncio.wait([task])
        return "done"

    assert asyncio.run(block()) == "done"


def test_a_cancellation_that_the_body_swallows_comes_again() -> None:
    async def block() -> None:
        async with Tasks() as tasks:
            tasks.start(fail(KeyError("lost")), "task")
            try:
                await for_ever()
            except asyncio.CancelledError:
                await for_ever()  # as `asyncio.wait_for` of Python 3.11 does when both come at once

    with pytest.raises(KeyError, match="lost"):
        asyncio.run(asyncio.wait_for(block(), 10))


def test_the_owner_may_go_on_after_the_block_and_be_cancelled_by_others() -> None:
    async def failing() -> None:
        async with Tasks() as tasks:
            tasks.start(fail(KeyError("first")), "task")
            await for_ever()

    async def block() -> None:
        with pytest.raises(KeyError):
            await failing()
        await for_ever()

    async def outside() -> None:
        owner = asyncio.create_task(block())
        await asyncio.sleep(0.05)
        assert not owner.done()
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner

    asyncio.run(asyncio.wait_for(outside(), 10))


def test_without_a_block_the_callback_is_told() -> None:
    async def told() -> BaseException:
        heard: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        start(fail(RuntimeError("dictionary changed size during iteration")), "beat", heard.set_result)
        return await asyncio.wait_for(heard, 10)

    assert "dictionary changed size" in str(asyncio.run(told()))
