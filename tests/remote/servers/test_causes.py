"""Every row of the table of causes recognises its example, and an unknown cause still gets a sentence."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from remote.servers.lifecycle import causes
from remote.servers.lifecycle.cause_table import CAUSES, Cause
from remote.servers.lifecycle.causes import End, explain, relevant_lines

EXPECTED = {
    "weights-memory": "The model's weights do not fit into GPU 0: 30.00 MiB more was needed and 10.31 MiB of "
    "139.80 GiB was free. Spread the model over more GPUs (`tp`)",
    "gpu-memory": "GPU 3 ran out of memory: 3.50 GiB more was needed and 1.21 GiB of 139.80 GiB was free "
    "(pid 4711 has 70.02 GiB of it). Lower `mem-fraction-static` (now 0.88)",
    "kv-cache-memory": "within `mem-fraction-static` (now 0.5)",
    "weights-beyond-fraction": "within `mem-fraction-static` (now 0.08). Raise `mem-fraction-static` above 0.172",
    "graph-memory": "CUDA error: out of memory",
    "nccl-shared-memory": "NCCL found no room in /dev/shm for /dev/shm/nccl-AbCdEf",
    "nccl-timeout": "Rank 5 waited 600012 ms in ALLREDUCE",
    "nccl": "NCCL failed on rank 3: unhandled cuda error (Cuda failure 2 'out of memory')",
    "port": "Port 8000 was taken",
    "weights-corrupt": "incomplete metadata, file not fully covered",
    "weights-missing": "no weight files in /shared/kimi-k2.5-int4",
    "file-missing": "/shared/kimi/model-00003-of-00064.safetensors",
    "remote-code": "trust-remote-code",
    "architecture": "'KimiK9ForCausalLM'",
    "context-length": "`context_length` is 262144 and the model's own limit is 131072",
    "flag": "unrecognized arguments: --disable-cuda-grap",
    "driver-old": "(CUDA 12040) is too old",
    "driver-missing": "no GPU that this user may use",
    "fabric-manager": "nvidia-fabricmanager",
    "gpu-kernel-image": "not built for this GPU",
    "gpu-hardware": "uncorrectable ECC error",
    "gpu-fault": "A GPU kernel failed on rank 2: an illegal memory access was encountered",
    "disk-full": "full at /dev/shm/sglang_hs/x",
    "files-limit": "ulimit -n",
    "permission": "may not use /dev/shm/sglang_hs",
    "rank-killed": "Rank 0 was killed by SIGKILL",
    "rank-bus-error": "SIGBUS",
    "watchdog": "over 300 s",
    "module": "lacks the module sgl_kernel",
}
COMMAND = ["python", "-m", "sglang.launch_server", "--mem-fraction-static", "0.88"]


def log_with(tmp_path: Path, text: str) -> Path:
    log = tmp_path / "main_v1.log"
    log.write_text(f"[2026-03-01 09:59:59] server_args={{'port': 8000}}\n{text}\n")
    return log


def test_a_gpu_is_named_by_its_number_on_the_host(tmp_path: Path) -> None:
    """A server that was given GPUs 4 to 7 counts them from 0."""
    example = next(cause.example for cause in CAUSES if cause.name == "gpu-memory")
    assert explain(log_with(tmp_path, example), End(1, COMMAND, gpus=[4, 5, 6, 7])).startswith("GPU 7 ran out")


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_each_cause_is_told_from_its_librarys_own_words(cause: Cause, tmp_path: Path) -> None:
    found = causes.match(cause.example)
    assert found is not None
    assert found[0].name == cause.name
    said = explain(log_with(tmp_path, cause.example), End(1, COMMAND))
    assert EXPECTED[cause.name] in said
    assert not re.search(r"[{}]", said)


def test_the_port_holder_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        text = f"[Errno 98] error while attempting to bind on address ('127.0.0.1', {port}): address already in use"
        assert re.search(rf"Port {port} was taken by pid \d+ \(", explain(log_with(tmp_path, text), End(1, COMMAND)))


def test_import_noise_is_no_cause(tmp_path: Path) -> None:
    noise = (
        "[2026-03-01 10:00:00] Ignore import error when loading sglang.srt.models.x: No module named 'cutlass'\n"
        "[2026-03-01 10:00:00] OpenAI Responses API disabled (ModuleNotFoundError: No module named 'openai_harmony')"
    )
    assert causes.match(noise) is None


def test_an_unknown_exception_is_quoted(tmp_path: Path) -> None:
    text = "Traceback (most recent call last):\n  File 'x.py'\nsome.module.OddError: the moon is full\nshutting down"
    assert "some.module.OddError: the moon is full" in explain(log_with(tmp_path, text), End(1, COMMAND))


def test_a_kill_tells_whether_the_kernel_ran_out_of_memory_meanwhile(tmp_path: Path) -> None:
    log = log_with(tmp_path, "loading")
    assert "out-of-memory killer ended 1 process" in explain(log, End(-9, COMMAND, oom_kills=1))
    assert "the kernel counted no out-of-memory kill" in explain(log, End(-9, COMMAND, oom_kills=0))


def test_a_rank_that_died_unexplained_is_named(tmp_path: Path) -> None:
    end = End(
        None, COMMAND, 1, "sglang::scheduler_TP3 (pid 7) was killed by SIGKILL, and the server did not end by itself"
    )
    said = explain(log_with(tmp_path, "decoding"), end)
    assert said.startswith("sglang::scheduler_TP3 (pid 7) was killed by SIGKILL")
    assert "out-of-memory killer ended 1 process" in said


def test_relevant_lines_end_with_the_last_exception_and_leave_noise_out(tmp_path: Path) -> None:
    text = "\n".join(
        [
            "Load weight begin",
            "[2026-03-01 10:00:00] Ignore import error when loading x: No module named 'y'",
            "Traceback (most recent call last):",
            "ValueError: bad shape",
            "[2026-03-01 10:00:01] kill_process_tree called",
        ]
    )
    lines = relevant_lines(log_with(tmp_path, text))
    assert lines == ["Load weight begin", "Traceback (most recent call last):", "ValueError: bad shape"]
