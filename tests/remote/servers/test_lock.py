"""One operator at a time changes a host, and a second operator is told who the first is."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from remote.context import Context
from remote.lock import LockedError, host_lock
from remote.report import Report
from remote.shared.paths import Workdir

ROOT = Path(__file__).parents[3]


def context(workdir: Path, operator: str) -> Context:
    return Context(Workdir(workdir), Report(io.StringIO()), operator)


def test_a_second_operator_is_told_who_holds_the_host_and_with_what(tmp_path: Path) -> None:
    told = pytest.raises(LockedError, match=r"ann@one has been at `serve` for 0 min")
    second = host_lock(context(tmp_path, "ben@two"), "stop")
    with host_lock(context(tmp_path, "ann@one"), "serve"), told as caught, second:
        pass
    assert "--wait" in caught.value.remedy
    with host_lock(context(tmp_path, "ben@two"), "stop"):
        pass


def test_waiting_takes_the_lock_when_the_first_command_ends(tmp_path: Path) -> None:
    second = context(tmp_path, "ben@two")
    entered = threading.Event()

    def wait() -> None:
        with host_lock(second, "stop", wait=True):
            entered.set()

    with host_lock(context(tmp_path, "ann@one"), "serve"):
        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.wait(0.3)
    thread.join(10)
    assert entered.is_set()


def test_the_lock_of_a_killed_command_is_stale_at_once(tmp_path: Path) -> None:
    code = (
        "import io, sys, time; from pathlib import Path; from remote.lock import host_lock\n"
        "from remote.context import Context; from remote.shared.paths import Workdir\n"
        "from remote.report import Report\n"
        "with host_lock(Context(Workdir(Path(sys.argv[1])), Report(io.StringIO()), 'ann@one'), 'serve'):\n"
        "    print('held', flush=True); time.sleep(600)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    assert Workdir(tmp_path).lock.read_text() != ""
    with host_lock(context(tmp_path, "ben@two"), "stop"):
        pass


def test_a_detached_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    with host_lock(context(tmp_path, "ann@one"), "serve"):
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        with host_lock(context(tmp_path, "ben@two"), "stop"):
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()
