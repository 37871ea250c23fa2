"""The verb `screen`: tries one NCCL setting on the GPUs of a server, with a deadline. Host side.

`inv tune` calls it for each setting. It starts one process for each rank and always ends all of them. It writes only a
temporary folder for NCCL's log.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from remote.context import Context
from remote.servers.probing.gpu import gpus
from remote.servers.probing.model import check_model, hidden_size
from remote.shared.errors import HostError
from remote.shared.messages.tune import Sample, ScreenRequest, ScreenResult, Status, check_gpus
from remote.tune.nccl_log import read_choice

LOG_SUBSYSTEMS = "INIT,ENV,GRAPH,TUNING"
POLL_SECONDS = 0.05
WORDS_KEPT = 400


def screen(request: ScreenRequest, context: Context, keep_logs: Path | None = None) -> ScreenResult:
    """Run the microbenchmark under `request.env`; a setting that crashes or hangs is a result, not an error.

    NCCL's own logs are copied to the folder `keep_logs`. Raises HostError for fewer than two ranks, or for GPUs that
    this host does not have.
    """
    world = len(request.gpus) or request.ranks
    if world < 2:
        raise HostError(
            "A collective needs at least two ranks.",
            remedy="Give the server at least two GPUs (tp 2 or more).",
        )
    if request.gpus:
        check_gpus(request.gpus, [gpu.index for gpu in gpus()])
    with tempfile.TemporaryDirectory(prefix="roost-screen-") as folder:
        begun = time.monotonic()
        ranks = _start(request, context, world, Path(folder))
        try:
            status, cause = _await(ranks, request.deadline_seconds, Path(folder))
        finally:
            _end(ranks)
        if keep_logs is not None:
            shutil.copytree(folder, keep_logs, dirs_exist_ok=True)
        chosen = read_choice(path.read_text(errors="replace") for path in sorted(Path(folder).glob("nccl-*")))
        if status == "crashed" and chosen.warnings:
            status, cause = "refused", f"NCCL refused the setting: {chosen.warnings[0].rstrip('.')}."
        return ScreenResult(
            status=status,
            cause=cause,
            backend="nccl" if request.gpus else "gloo",
            samples=_samples(Path(folder)) if status == "ok" else [],
            chosen=chosen,
            seconds=time.monotonic() - begun,
        )


def _start(request: ScreenRequest, context: Context, world: int, folder: Path) -> list[subprocess.Popen[bytes]]:
    """Start one process for each rank, each in its own session."""
    width = request.hidden_size or hidden_size(check_model(request.model))
    sizes = [tokens * width * request.dtype_bytes for tokens in request.tokens]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        **request.env,
        # With NCCL_DEBUG=WARN from the inventory, the log would hold nothing to read.
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": LOG_SUBSYSTEMS,
        "NCCL_DEBUG_FILE": str(folder / "nccl-%p"),
        "PYTHONPATH": str(context.payload),
    }
    ranks: list[subprocess.Popen[bytes]] = []
    for rank in range(world):
        gpu = request.gpus[rank] if request.gpus else None
        task = {"rank": rank, "world": world, "meeting": str(folder / "meeting"), "gpu": gpu, "sizes": sizes}
        with (folder / f"out-{rank}").open("wb") as out, (folder / f"err-{rank}").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "remote.tune.rank", json.dumps({**task, "repetitions": request.repetitions})],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=env,
                start_new_session=True,
            )
        ranks.append(process)
    return ranks


def _await(ranks: list[subprocess.Popen[bytes]], deadline: float, folder: Path) -> tuple[Status, str]:
    """Wait until all ranks have succeeded, one rank has failed, or the deadline has passed."""
    ends_at = time.monotonic() + deadline
    while time.monotonic() < ends_at:
        codes = [rank.poll() for rank in ranks]
        failed = next((number for number, code in enumerate(codes) if code not in (None, 0)), None)
        if failed is not None:
            return "crashed", f"Rank {failed} ended with status {codes[failed]}: {_last_words(folder, failed)}."
        if all(code == 0 for code in codes):
            return "ok", ""
        time.sleep(POLL_SECONDS)
    return "hung", f"No result within {deadline:.0f} s."


def _last_words(folder: Path, rank: int) -> str:
    """Return the rank's last line on stderr, in which Python names the cause."""
    lines = (folder / f"err-{rank}").read_text(errors="replace").strip().splitlines()
    return lines[-1][:WORDS_KEPT].rstrip(".") if lines else "it said nothing"


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Send SIGKILL to running ranks: a rank that hangs in a collective does not react to SIGTERM."""
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, signal.SIGKILL)
    for rank in ranks:
        rank.wait()


def _samples(folder: Path) -> list[Sample]:
    """Return rank 0's times; all ranks print the same, because each value is the slowest rank's."""
    times = json.loads((folder / "out-0").read_text().strip().splitlines()[-1])
    return [
        Sample(operation=operation, size_bytes=int(size), microseconds=values)
        for operation, by_size in times.items()
        for size, values in by_size.items()
    ]
