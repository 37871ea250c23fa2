"""A start waits for GPU memory that is freed late, but not for memory of living processes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remote.context import Context
from remote.report import Report
from remote.servers.lifecycle import ending, serve
from remote.servers.lifecycle.command import Launch
from remote.servers.lifecycle.serve import Order
from remote.servers.probing import gpu, memory
from remote.servers.probing.gpu import Gpu
from remote.shared.errors import HostError
from remote.shared.messages.server import ServerSpec
from remote.shared.paths import Workdir

TOTAL = 81 << 30


def driver(monkeypatch: pytest.MonkeyPatch, *charges: int, pid: int) -> None:
    """A driver whose figure is each of these GiB in turn, and stays at the last one."""
    left = list(charges)

    def gpus() -> list[Gpu]:
        used = left.pop(0) if len(left) > 1 else left[0]
        return [Gpu(0, "H200", TOTAL, used << 30, {pid: used << 30} if used else {})]

    monkeypatch.setattr(gpu, "gpus", gpus)
    monkeypatch.setattr(ending, "POLL_SECONDS", 0.01)


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def order() -> Order:
    return Order(Launch(ServerSpec(model="m", gpus=[0]), [], {}), None)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Workdir(tmp_path), Report(io.StringIO()))


def test_a_start_waits_until_the_driver_s_figure_has_followed_the_last_process(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(monkeypatch, 70, 70, 70, 0, pid=dead_pid())
    serve._await_memory([order()], context)
    assert memory.await_orphaned({0}, context.report) == []
    stream = context.report._stream
    assert isinstance(stream, io.StringIO)
    assert stream.getvalue().count("waiting for GPU memory") == 1


def test_memory_that_never_comes_back_is_a_sentence_within_the_deadline(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(monkeypatch, 70, pid=dead_pid())
    monkeypatch.setattr(memory, "MEMORY_SECONDS", 0.1)
    with pytest.raises(HostError, match=r"GPU 0 still has 70\.0 GiB in use.*Nothing was started.*reboot"):
        serve._await_memory([order()], context)


def test_a_start_does_not_wait_for_memory_of_living_processes(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(monkeypatch, 70, pid=os.getpid())
    serve._await_memory([order()], context)
    monkeypatch.setattr(memory, "MEMORY_SECONDS", 0.1)
    assert [found.index for found in memory.await_idle({0}, context.report)] == [0]
