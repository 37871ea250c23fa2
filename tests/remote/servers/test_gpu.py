"""On a real GPU: its holder is named with its memory, force frees the memory, and torch's errors are understood."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.context import Context
from remote.report import Report
from remote.servers.lifecycle.causes import End, explain
from remote.servers.lifecycle.stop import stop
from remote.servers.probing import gpu
from remote.servers.probing.gpu import gpus
from remote.servers.probing.obstacles import find_obstacles
from remote.shared.messages.server import Needs, StopRequest
from remote.shared.paths import Workdir

pytestmark = pytest.mark.skipif(not gpus(), reason="this host has no NVIDIA GPU")

HELD_BYTES = 8 << 30
NEEDS = [Needs(server="main", port=1, gpus=[0])]


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """A process that holds 8 GiB of GPU 0 and does not hear SIGTERM."""
    code = (
        "import signal, sys, torch; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"held = torch.zeros({HELD_BYTES}, dtype=torch.uint8, device='cuda:0'); print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("source", ["nvml", "smi"])
def test_memory_is_read_by_nvml_and_by_nvidia_smi(
    source: str, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "smi":
        monkeypatch.setattr(gpu, "_by_nvml", lambda: None)
    first = gpus()[0]
    assert first.total_bytes > first.used_bytes > HELD_BYTES
    assert not first.is_idle


def test_the_process_that_holds_a_gpu_is_found_by_the_device_node(holder: subprocess.Popen[str]) -> None:
    found = {entry.process.pid: entry for entry in find_obstacles(NEEDS, gpus(), everything=False)}
    assert holder.pid in found
    assert found[holder.pid].row({}).holds == [gpus()[0].node]


def test_force_gives_the_memory_back_before_it_says_done(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    context = Context(Workdir(tmp_path), Report(io.StringIO()))
    listed = stop(StopRequest(needs=NEEDS, dry_run=True), context)
    assert holder.poll() is None
    assert holder.pid in {row.pid for row in listed.others}
    result = stop(StopRequest(needs=NEEDS, force=True), context)
    assert result.remaining == []
    assert gpus()[0].is_idle
    assert holder.wait(10) == -signal.SIGKILL


def test_torchs_out_of_memory_error_is_told_with_its_numbers(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    code = "import torch; torch.zeros(1 << 42, dtype=torch.uint8, device='cuda:0')"
    log = tmp_path / "main_v1.log"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    log.write_text(ended.stderr)
    cause = explain(log, End(ended.returncode, ["--mem-fraction-static", "0.95"]))
    print(cause)
    assert cause.startswith("GPU 0 ran out of memory: 4096.00 GiB more was needed")
    assert "(now 0.95)" in cause
