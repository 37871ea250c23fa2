"""Measures capture without CUDA: the prefill rate with 1, 4 and 16 requests in flight, and capture's share of the time.

    python -m benchmarks.capture_cpu --out benchmarks/results

Starts one practice server (SGLang on CPU, a tiny DeepSeek-V3) with the host's own Python, alternates plain and
captured rounds, and deletes dumps as a collector would. The figures do not say what capture costs on a GPU, because
here everything shares the CPU's cores; but anybody can time the same code.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hosts.practice.models import tiny_model
from hosts.practice.paths import PracticePaths
from hosts.practice.serving import CpuServer
from remote.attach.ways import environment as attach_environment
from remote.capture.environment import environment
from remote.shared.messages.capture import CaptureStatus
from remote.shared.messages.server import CaptureSpec
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import register

REPOSITORY = Path(__file__).resolve().parents[1]
IN_FLIGHT = (1, 4, 16)
LENGTH = 256
REQUESTS = 16
LAYERS = [2, 3, 4]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    dumps = Path(tempfile.mkdtemp(prefix="roost-bench-", dir="/dev/shm"))
    spec = CaptureSpec(layers=LAYERS, dump_dir=str(dumps), pinned_bytes=64 << 20, high_water_bytes=1 << 30)
    env = {**attach_environment("plugin", REPOSITORY), **environment(spec)}
    flags = ["--disable-radix-cache", "--max-running-requests", "16"]
    python = PracticePaths(REPOSITORY).engine_python
    try:
        with (
            tempfile.NamedTemporaryFile(suffix=".log") as log,
            CpuServer(python, tiny_model(REPOSITORY), Path(log.name), flags=flags, env=env) as server,
            Collector(dumps) as collector,
        ):
            register(dumps, "captured")
            measure(server, collector, "warm", 4, 0)
            rows = [row(server, collector, in_flight, given.rounds) for in_flight in IN_FLIGHT]
    finally:
        shutil.rmtree(dumps, ignore_errors=True)
    save(given.out, rows)


def row(server: CpuServer, collector: Collector, in_flight: int, rounds: int) -> dict[str, Any]:
    """Return the medians over interleaved rounds."""
    rates: dict[str, list[float]] = {"plain": [], "captured": []}
    shares = []
    for turn in range(rounds):
        for way in ("plain", "captured") if turn % 2 == 0 else ("captured", "plain"):
            before, since = collector.status().capture_seconds, time.perf_counter()
            rates[way].append(measure(server, collector, way, in_flight, 100 * in_flight + turn))
            if way == "captured":
                elapsed = time.perf_counter() - since
                shares.append((collector.settled().capture_seconds - before) / elapsed)
    found = {
        "in_flight": in_flight,
        **{f"{way}_tokens_per_second": statistics.median(values) for way, values in rates.items()},
        "spread": {way: [min(values), max(values)] for way, values in rates.items()},
        "share_in_capture": statistics.median(shares),
    }
    print(json.dumps(found), flush=True)
    return found


def measure(server: CpuServer, collector: Collector, way: str, in_flight: int, turn: int) -> float:
    """Return the tokens a second of one round. The wait for the dumps afterwards is not counted."""
    draw = random.Random(turn)
    prompts = [[draw.randrange(256) for _ in range(LENGTH)] for _ in range(REQUESTS)]
    rids = [str(RequestId(way, turn * 1000 + i, 0, LENGTH)) if way == "captured" else "" for i in range(REQUESTS)]

    def send(pair: tuple[list[int], str]) -> None:
        parameters = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": pair[0], "sampling_params": parameters, **({"rid": pair[1]} if pair[1] else {})}
        server.post("/generate", body, timeout=300)

    since = time.perf_counter()
    with ThreadPoolExecutor(in_flight) as pool:
        list(pool.map(send, zip(prompts, rids, strict=True)))
    seconds = time.perf_counter() - since
    collector.wait_for(rid for rid in rids if rid)
    return REQUESTS * LENGTH / seconds


class Collector:
    """A thread that deletes each dump once it is complete."""

    def __init__(self, dumps: Path) -> None:
        self._dumps = dumps
        self._taken: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def status(self) -> CaptureStatus:
        return CaptureStatus.model_validate_json(next(self._dumps.glob(".capture-*.json")).read_bytes())

    def settled(self) -> CaptureStatus:
        """Wait until the process has written its status again, and return the status."""
        now, status, deadline = time.time(), self.status(), time.monotonic() + 3
        while status.updated_at < now and time.monotonic() < deadline:
            time.sleep(0.05)
            status = self.status()
        return status

    def wait_for(self, rids: Any, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        missing = {f"{rid}.safetensors" for rid in rids}
        while missing - self._taken:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no dump {sorted(missing - self._taken)[0]}")
            time.sleep(0.005)

    def _run(self) -> None:
        while not self._over.wait(0.005):
            for path in self._dumps.glob("roost.*.safetensors"):
                path.unlink()
                self._taken.add(path.name)


def save(out: Path, rows: list[dict[str, Any]]) -> None:
    from importlib.metadata import version

    out.mkdir(parents=True, exist_ok=True)
    date = datetime.date.today().isoformat()
    about = {"sglang": version("sglang"), "torch": version("torch"), "python": platform.python_version()}
    about |= {"cores": str(os.cpu_count()), "machine": platform.machine(), "date": date}
    lines = ["# Capture on a CPU", "", ", ".join(f"{key} {value}" for key, value in about.items()) + ".", ""]
    lines += [f"A tiny DeepSeek-V3, {REQUESTS} prompts of {LENGTH} tokens a round; medians.", ""]
    lines += ["| in flight | plain, tokens/s | captured, tokens/s | forward thread's share in capture |"]
    lines += ["|---|---|---|---|"]
    for found in rows:
        plain, captured = (f"{found[f'{way}_tokens_per_second']:,.0f}" for way in ("plain", "captured"))
        lines.append(f"| {found['in_flight']} | {plain} | {captured} | {found['share_in_capture']:.2%} |")
    (out / f"capture_cpu-{date}.json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    (out / f"capture_cpu-{date}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
