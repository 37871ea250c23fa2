"""A pool of processes: a killed worker is one sentence, and workers never outlive a cut or their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from remote.shared.errors import HostError
from remote.shared.supervised.processes import process_pool

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.processes


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_told_in_a_sentence() -> None:
    with (
        pytest.raises(HostError, match=r"worker process was killed.*Use fewer"),
        process_pool(1, remedy="Use fewer.") as pool,
    ):
        pool.submit(killed).result()


def test_a_cut_ends_the_workers_and_drops_queued_tasks() -> None:
    pids: list[int] = []

    def cut() -> None:
        with process_pool(1) as pool:
            pids.append(pool.submit(os.getpid).result())
            for _ in range(3):
                pool.submit(time.sleep, 600)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_workers_end_with_an_owner_that_is_killed() -> None:
    script = (
        "import os, time\nfrom remote.shared.supervised.processes import process_pool\n"
        "if __name__ == '__main__':\n with process_pool(1) as pool:\n"
        "  print(pool.submit(os.getpid).result(), flush=True)\n  time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    worker = psutil.Process(int(owner.stdout.readline()))
    owner.kill()
    owner.wait()
    worker.wait(30)
