"""Screening with real ranks over gloo: times come back, and a crash or a hang is a result."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remote.context import Context
from remote.report import Report
from remote.servers.probing.gpu import Gpu
from remote.shared.errors import HostError
from remote.shared.messages.tune import ScreenRequest
from remote.shared.paths import Workdir
from remote.tune.screen import _start, screen

pytestmark = pytest.mark.processes


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Workdir(tmp_path), Report(io.StringIO()))


def test_every_operation_and_size_is_timed(context: Context) -> None:
    result = screen(ScreenRequest(hidden_size=64, tokens=[1, 16], repetitions=2), context)
    assert (result.status, result.backend) == ("ok", "gloo")
    assert {(sample.operation, sample.size_bytes) for sample in result.samples} == {
        (operation, size) for operation in ("all_reduce", "all_gather") for size in (128, 2048)
    }
    assert all(len(sample.microseconds) == 2 and min(sample.microseconds) > 0 for sample in result.samples)


def test_a_setting_that_crashes_is_a_result_with_its_last_words(context: Context) -> None:
    result = screen(ScreenRequest(hidden_size=64, env={"GLOO_SOCKET_IFNAME": "nonsense0"}), context)
    assert result.status == "crashed"
    assert "nonsense0" in result.cause


def test_a_setting_that_hangs_ends_at_the_deadline_and_leaves_no_process(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: Any) -> list[subprocess.Popen[bytes]]:
        started.extend(_start(*args))
        return started

    monkeypatch.setattr("remote.tune.screen._start", start)
    result = screen(ScreenRequest(hidden_size=64, deadline_seconds=0.2), context)
    assert result.status == "hung"
    assert [rank.returncode for rank in started] == [-signal.SIGKILL] * 2
    for rank in started:
        with pytest.raises(ProcessLookupError):
            os.killpg(rank.pid, 0)


def ranks_that_run(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`program` in the place of each rank, in the environment that the rank would have."""

    def popen(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", program], **options)

    monkeypatch.setattr("remote.tune.screen.subprocess", SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL))


def test_a_setting_that_nccl_refuses_is_told_from_a_crash_by_its_own_log(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Path(__file__).parent / "logs" / "Tree.log"
    to = "os.environ['NCCL_DEBUG_FILE'].replace('%p', str(os.getpid()))"
    ranks_that_run(f"import os, shutil; shutil.copy({str(log)!r}, {to}); raise SystemExit(1)", monkeypatch)
    result = screen(ScreenRequest(hidden_size=64, env={"NCCL_ALGO": "Tree"}), context)
    assert result.status == "refused"
    assert "NCCL refused the setting: Error : no algorithm/protocol available for function AllGather" in result.cause


def test_nccls_log_is_read_with_any_log_settings_of_the_inventory(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_PROTO")
    ranks_that_run(f"import os; raise SystemExit(str([os.environ[name] for name in {names}]))", monkeypatch)
    own = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "NET", "NCCL_DEBUG_FILE": "/nowhere/log", "NCCL_PROTO": "LL"}
    result = screen(ScreenRequest(hidden_size=64, env=own), context)
    assert "['INFO', 'INIT,ENV,GRAPH,TUNING', 'LL']" in result.cause


def test_one_rank_measures_nothing(context: Context) -> None:
    with pytest.raises(HostError, match="needs at least two ranks"):
        screen(ScreenRequest(hidden_size=64, gpus=[0]), context)


def test_missing_gpus_are_named_before_anything_starts(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.tune.screen.gpus", lambda: [Gpu(0, "NVIDIA H200", 1 << 37, 0)])
    with pytest.raises(HostError, match="GPU 1 is missing: this host shows 1 of the 2 GPUs"):
        screen(ScreenRequest(hidden_size=64, gpus=[0, 1]), context)
