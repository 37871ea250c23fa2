"""Profiles capture on short prompts: 64 x 512 tokens, plain and captured, in one server.

    python -m benchmarks.profile_gpu --root ~/sglang-gpu --out benchmarks/results [--wait-for FILE]

Eight true-width DeepSeek-V3 layers (as benchmarks/capture_gpu.py). SGLang's own profiler records the device's kernels
and copies by stream, and rounds alternate. The result has separate figures for the kernels that capture adds to the
stream of the forward pass, the slowdown of that stream's other kernels, the gaps between its kernels, and the work on
capture's own streams. The CPU time of capture's threads and of the scheduler's thread is measured without the profiler.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import itertools
import json
import statistics
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.capture_gpu import Drain, machine, run, start_mid
from benchmarks.gpu.server import READY_SECONDS, GpuServer
from remote.shared.shard.sessions import register

SHAPE = (64, 512)
TOKENS = SHAPE[0] * SHAPE[1]
ROUNDS = 3
WAYS = ("plain", "gathered", "ours")
WAIT_SECONDS = 400.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--root", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--wait-for", type=Path, help="begin to measure when this file is there")
    given = options.parse_args()
    given.parallel, given.name, given.gpus, given.logs = "", "tp1", "0", given.root / "logs"
    for folder in (given.out, given.logs):
        folder.mkdir(parents=True, exist_ok=True)
    server = start_mid(given)
    found: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": machine(), "tokens": TOKENS}
    try:
        server.wait(READY_SECONDS)
        wait_for(given.wait_for)
        for nonce in WAYS[1:]:
            register(server.dumps, nonce)
        with Drain(server.dumps, given.logs) as drain:
            for way in WAYS:
                run(server, drain, way, SHAPE, 90)
            found["profiled"] = profiled(server, drain, given.root / "traces")
            save(given.out, found)
            found["timed"] = timed(server, drain)
    finally:
        server.stop()
        save(given.out, found)
        print(json.dumps(found, indent=1), flush=True)


def save(out: Path, found: dict[str, Any]) -> None:
    (out / f"profile_gpu-{found['date']}.json").write_text(json.dumps(found, indent=1) + "\n")


def wait_for(path: Path | None) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while path is not None and not path.exists() and time.monotonic() < deadline:
        time.sleep(0.5)


def timed(server: GpuServer, drain: Drain, rounds: int = 7) -> dict[str, Any]:
    """Return microseconds a token without a profiler, and CPU seconds a round of each of the scheduler's threads."""
    scheduler = scheduler_of(server)
    micros: dict[str, list[float]] = defaultdict(list)
    threads: dict[str, dict[str, float]] = {way: defaultdict(float) for way in WAYS}
    for turn in range(rounds):
        for way in WAYS[turn % 3 :] + WAYS[: turn % 3]:
            before = cpu(scheduler)
            micros[way].append(run(server, drain, way, SHAPE, 100 + turn))
            for name, seconds in cpu(scheduler).items():
                threads[way][name] += (seconds - before.get(name, 0.0)) / rounds
    plain = statistics.median(micros["plain"])
    return {
        way: {
            "us_a_token": round(statistics.median(micros[way]), 3),
            "rounds": [round(value, 3) for value in micros[way]],
            "over_plain": round(statistics.median(micros[way]) / plain - 1, 5),
            "cpu_seconds_a_round": {name: round(s, 4) for name, s in sorted(threads[way].items()) if s > 0.0005},
        }
        for way in WAYS
    }


def scheduler_of(server: GpuServer) -> psutil.Process:
    parent = psutil.Process(server.pid)
    return max(parent.children(recursive=True), key=lambda child: child.memory_info().rss)


def cpu(process: psutil.Process) -> dict[str, float]:
    """Return the CPU seconds by thread name. The first thread is the scheduler's own."""
    found: dict[str, float] = defaultdict(float)
    for thread in process.threads():
        try:
            name = Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text().strip()
        except OSError:
            continue
        found["scheduler" if thread.id == process.pid else name] += thread.user_time + thread.system_time
    return found


def profiled(server: GpuServer, drain: Drain, traces: Path) -> dict[str, Any]:
    """Return the device's times in a round, plain and captured, as medians over rounds."""
    seen: dict[str, list[dict[str, float]]] = defaultdict(list)
    for turn in range(ROUNDS):
        for way in WAYS:
            folder = traces / f"{way}-{turn}"
            folder.mkdir(parents=True, exist_ok=True)
            ask(server, "start_profile", {"output_dir": str(folder), "activities": ["CPU", "GPU"]})
            micros = run(server, drain, way, SHAPE, 200 + turn)
            ask(server, "stop_profile", {})
            seen[way].append({"us_a_token_profiled": micros, **device_times(traced(folder))})
    keys = sorted({key for rounds in seen.values() for one in rounds for key in one})
    return {
        way: {key: round(statistics.median(one.get(key, 0.0) for one in rounds), 4) for key in keys}
        for way, rounds in seen.items()
    }


def ask(server: GpuServer, path: str, body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


def traced(folder: Path, seconds: float = 60) -> list[dict[str, Any]]:
    """Wait for the trace in `folder`, and return its events."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for path in folder.rglob("*.trace.json.gz"):
            try:
                events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
            except (EOFError, ValueError, OSError):
                continue
            return events
        time.sleep(0.2)
    raise TimeoutError(f"no trace in {folder}: {sorted(folder.rglob('*'))}")


def device_times(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return a round's milliseconds by kind: the forward pass's stream (the busiest), its gaps, and other streams."""
    work = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in one]
    streams: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for one in work:
        streams[one["args"].get("stream")].append(one)
    main = max(streams, key=lambda stream: sum(one["dur"] for one in streams[stream]))
    ordered = sorted(streams[main], key=lambda one: one["ts"])
    busy = sum(one["dur"] for one in ordered)
    span = ordered[-1]["ts"] + ordered[-1]["dur"] - ordered[0]["ts"]
    gaps = sum(max(0.0, after["ts"] - before["ts"] - before["dur"]) for before, after in itertools.pairwise(ordered))
    large = sorted((one["dur"] for one in ordered if one["dur"] > 200), reverse=True)
    others: dict[str, float] = defaultdict(float)
    for stream, ones in streams.items():
        if stream != main:
            for one in ones:
                others[f"beside_{one['cat']}_ms"] += one["dur"] / 1e3
    return {
        "main_busy_ms": busy / 1e3,
        "main_kernels": float(len(ordered)),
        "main_large_kernels_ms": sum(large) / 1e3,
        "main_small_kernels_ms": (busy - sum(large)) / 1e3,
        "main_gaps_ms": gaps / 1e3,
        "main_span_ms": span / 1e3,
        **others,
    }


if __name__ == "__main__":
    main()
