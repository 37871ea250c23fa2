"""Threads and pools: exceptions reach the owner, a cut cancels the queue, no wait lasts for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from remote.shared.supervised.pools import Pool, as_finished, in_order
from remote.shared.supervised.threads import DeadlineError, Thread

ROOT = Path(__file__).resolve().parents[3]


def boom(*_: object) -> None:
    raise KeyError("boom")


def test_a_thread_s_exception_is_told_at_once_and_raised_by_join() -> None:
    told: list[BaseException] = []
    thread = Thread(boom, "worker", told.append)
    with pytest.raises(KeyError, match="boom"):
        thread.join()
    assert isinstance(told[0], KeyError)


def test_a_thread_that_goes_on_meets_the_deadline_of_its_owner() -> None:
    release = threading.Event()

    def work() -> None:
        release.wait(30)

    thread = Thread(work, "slow one")
    with pytest.raises(DeadlineError, match=r"slow one did not end within 0.05 s"):
        thread.join(0.05)
    release.set()
    thread.join()


@pytest.mark.parametrize("settles", [True, False])
def test_only_a_pool_that_settles_waits_for_running_jobs_after_an_error(settles: bool) -> None:
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        release.wait(30)
        ended.set()

    def fail() -> None:
        with Pool(1, "job", settles=settles) as pool:
            pool.submit(slow)
            assert begun.wait(30)
            if settles:
                threading.Timer(0.2, release.set).start()
            boom()

    with pytest.raises(KeyError, match="boom"):
        fail()
    assert ended.is_set() == settles
    release.set()


def test_a_pool_left_by_an_exception_does_not_run_queued_jobs() -> None:
    begun, release, ran = threading.Event(), threading.Event(), list[int]()

    def first() -> None:
        begun.set()
        release.wait(30)

    rest: list[Future[None]] = []

    def cut() -> None:
        with Pool(1, "job") as pool:
            pool.submit(first)
            rest.extend(pool.submit(ran.append, number) for number in range(5))
            assert begun.wait(30)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut()
    release.set()
    assert all(job.cancelled() for job in rest)
    assert not ran


def test_a_pool_left_without_an_error_has_done_all_its_jobs() -> None:
    with Pool(3, "job") as pool:
        jobs = [pool.submit(pow, number, 2) for number in range(20)]
    assert [job.result() for job in jobs] == [number**2 for number in range(20)]
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(pow, 1, 1)


def test_results_come_in_order_and_only_a_few_jobs_are_ahead() -> None:
    given: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(30):
            given.append(number)
            yield number

    with Pool(4, "job") as pool:
        results = in_order(pool, lambda number: number * 2, numbers(), ahead=4)
        assert next(results) == 0
        assert len(given) == 4
        assert list(results) == [number * 2 for number in range(1, 30)]


def test_a_job_s_exception_is_its_own() -> None:
    with Pool(2, "job") as pool:
        jobs: list[Future[None]] = [pool.submit(boom), pool.submit(lambda: None)]
        errors = [job.exception() for job in as_finished(jobs)]
    assert sorted(type(error).__name__ for error in errors) == ["KeyError", "NoneType"]


def test_asyncio_takes_a_pool() -> None:
    async def use() -> int:
        with Pool(1, "job") as pool:
            return await asyncio.get_running_loop().run_in_executor(pool, pow, 2, 5)

    assert asyncio.run(use()) == 32


@pytest.mark.processes
def test_a_thread_that_hangs_does_not_keep_its_process_alive() -> None:
    script = (
        "import threading\nfrom remote.shared.supervised.pools import Pool\n"
        "begun = threading.Event()\n"
        "try:\n with Pool(1, 'hung') as pool:\n"
        "  pool.submit(lambda: (begun.set(), threading.Event().wait()))\n  begun.wait(30)\n  raise KeyboardInterrupt\n"
        "except KeyboardInterrupt:\n print('left')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
