"""`stop` ends every process of Roost, even hidden ones, and no other process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from remote.context import Context
from remote.servers.lifecycle import ending
from remote.servers.lifecycle.stop import stop
from remote.servers.lifecycle.stopping import describe_remaining
from remote.shared.messages.server import ProcessRef, ServerState, StopRequest
from remote.shared.paths import Workdir
from remote.shared.processes import find, members, reference, untouchable
from tests.remote.servers.states import server_of, supervisor_of

Start = Callable[..., ServerState]


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else whose command line speaks of sglang."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", "tail", "-f", "sglang.launch_server.log"]
    )
    yield process
    process.kill()
    process.wait()


def test_stopping_ends_the_server_and_its_supervisor_and_no_bystander_that_mentions_sglang(
    start: Start, until: Start, context: Context, bystander: subprocess.Popen[bytes]
) -> None:
    start()
    ready = until("ready")
    result = stop(StopRequest(), context)
    assert result.stopped == ["main"]
    assert result.remaining == []
    assert find(ready.server) is None
    assert find(ready.supervisor) is None
    assert until("stopped").exit_code is not None
    assert bystander.poll() is None
    assert stop(StopRequest(), context).stopped == [], "a second time there is nothing to stop"
    assert until("stopped").cause == ""


def test_a_dry_run_ends_nothing_and_another_workdir_finds_nothing_of_its_own(
    start: Start, until: Start, context: Context, tmp_path: Path
) -> None:
    start()
    ready = until("ready")
    result = stop(StopRequest(dry_run=True), context)
    assert server_of(ready).pid in [row.pid for row in result.processes]
    other = Context(Workdir(tmp_path / "other"), context.report)
    assert stop(StopRequest(), other).stopped == []
    assert find(ready.server) is not None


def test_a_reparented_child_in_a_session_of_its_own_dies(
    start: Start, until: Start, context: Context, tmp_path: Path
) -> None:
    file = tmp_path / "orphan"
    start("--orphan", str(file))
    ready = until("ready")
    orphan = reference(int(file.read_text()))
    assert orphan.session != server_of(ready).session
    result = stop(StopRequest(), context)
    assert orphan.pid in [row.pid for row in result.processes]
    assert find(orphan) is None


def test_children_left_by_a_killed_server_without_supervisor_are_still_found_and_ended(
    start: Start, until: Start, context: Context, tmp_path: Path
) -> None:
    file = tmp_path / "orphan"
    start("--orphan", str(file))
    ready = until("ready")
    orphan = reference(int(file.read_text()))
    for ref in (supervisor_of(ready), server_of(ready)):
        os.kill(ref.pid, signal.SIGKILL)
    assert ending.wait_until(lambda: find(ready.server) is None, 10)
    assert find(orphan) is not None
    assert stop(StopRequest(), context).remaining == []
    assert find(orphan) is None
    assert until("stopped").ended_at is not None


def test_a_server_deaf_to_sigterm_is_killed_after_the_grace(start: Start, until: Start, context: Context) -> None:
    start("--deaf")
    ready = until("ready")
    assert stop(StopRequest(grace_seconds=0.5), context).remaining == []
    assert find(ready.server) is None
    assert until("stopped").exit_code == -signal.SIGKILL


def test_a_reused_pid_is_nobodys_server() -> None:
    """The record's pid lives, but as a later process: it and its session are left alone."""
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        real = reference(stranger.pid)
        boot, ticks = real.start.split()
        earlier = {"created_at": real.created_at - 3600, "start": f"{boot} {int(ticks) - 360_000}"}
        stale = real.model_copy(update=earlier)
        assert find(stale) is None
        assert members(stale, "/nowhere#0") == []
        assert ending.end(stale, "/nowhere#0", grace_seconds=0.0) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_session_number_given_again_is_nobodys_server() -> None:
    """The leader is long gone and its number became another session's, whose leader ended too."""
    script = "import subprocess; print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid)"
    leader = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True)
    child = int(leader.communicate()[0])
    try:
        stale = ProcessRef(pid=leader.pid, created_at=time.time() - 3600, group=leader.pid, session=leader.pid)
        assert os.getsid(child) == leader.pid
        assert members(stale, "/nowhere#0") == []
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_zombie_counts_as_ended() -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    try:
        assert ending.wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, 10)
        ref = ProcessRef(
            pid=child.pid, created_at=psutil.Process(child.pid).create_time(), group=child.pid, session=child.pid
        )
        assert find(ref) is None
        assert members(ref, "/nowhere#0") == []
    finally:
        child.wait()


def test_this_process_and_its_ancestors_are_never_ended() -> None:
    assert {1, os.getpid(), os.getppid()} <= untouchable()


def test_a_process_in_an_uninterruptible_call_is_reported_with_what_that_means(tmp_path: Path) -> None:
    """`posix_spawn` holds its caller in state D until the child's exec, and this child waits for a FIFO's writer."""
    fifo = tmp_path / "nobody writes"
    os.mkfifo(fifo)
    code = (
        "import os, sys\n"
        "waiting = [(os.POSIX_SPAWN_OPEN, 3, sys.argv[1], os.O_RDONLY, 0)]\n"
        "os.posix_spawn('/bin/true', ['true'], {}, file_actions=waiting)"
    )
    stuck = psutil.Popen([sys.executable, "-c", code, str(fifo)])
    try:
        assert ending.wait_until(lambda: stuck.status() == psutil.STATUS_DISK_SLEEP, 10)
        said = describe_remaining(psutil.Process(stuck.pid))
        assert f"pid {stuck.pid} (" in said
        assert "state D" in said
    finally:
        for process in (*stuck.children(), stuck):
            process.kill()
        stuck.wait()


def test_the_grace_that_was_asked_for_is_the_supervisor_s_too(start: Start, until: Start, context: Context) -> None:
    """A server that ignores SIGTERM lives for as long as was asked, whatever the usual time is."""
    start("--deaf")
    ready = until("ready")
    began = time.monotonic()
    os.kill(server_of(ready).pid, 0)
    assert stop(StopRequest(grace_seconds=2.5), context).remaining == []
    assert 2.5 <= time.monotonic() - began < 15
    assert not context.workdir.server("main").grace.exists()


def test_a_grace_longer_than_the_usual_one_is_kept_by_the_supervisor(
    start: Start, until: Start, context: Context
) -> None:
    start("--deaf")
    ready = until("ready")
    paths = context.workdir.server("main")
    paths.grace.write_text("600")
    os.kill(supervisor_of(ready).pid, signal.SIGTERM)
    assert ending.wait_until(lambda: not paths.grace.exists(), 30), "the supervisor reads it"
    assert not ending.wait_until(lambda: find(ready.server) is None, 1.0)
    assert stop(StopRequest(grace_seconds=0.2), context).remaining == []
