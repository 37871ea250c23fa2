"""Remembered processes: found only while they are the same, ended also when they ignore SIGTERM."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from hosts.practice import processes

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has told SIGTERM not to bother."""
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"deaf\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_later_process_with_the_same_pid_is_not_found(stubborn: subprocess.Popen[bytes]) -> None:
    ref = processes.reference(psutil.Process(stubborn.pid))
    assert processes.find(ref) is not None
    assert processes.find(ref.model_copy(update={"start": f"{ref.start}1"})) is None


def test_a_zombie_is_not_found(stubborn: subprocess.Popen[bytes]) -> None:
    ref = processes.reference(psutil.Process(stubborn.pid))
    stubborn.kill()
    psutil.wait_procs([psutil.Process(stubborn.pid)], timeout=10)
    assert processes.find(ref) is None


def test_a_process_that_ignores_sigterm_is_killed(stubborn: subprocess.Popen[bytes]) -> None:
    processes.end([psutil.Process(stubborn.pid)], grace_seconds=0.05)
    assert stubborn.poll() is not None
