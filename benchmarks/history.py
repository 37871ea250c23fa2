"""Measures what a history costs a host: CPU time of a look, and bytes after a month. Runs under the host's Python.

    .engine/bin/python -m benchmarks.history [--looks 300] [--out benchmarks/results]

The host is a folder with the files of an extractor and a supervisor: a run at work, a server whose log grows, eight
GPUs (with invented readings; NVML's time is measured on a GPU host). The history is a month old.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

from remote.context import Context
from remote.history.recorder import Recorder
from remote.history.store import to_write
from remote.report import Report
from remote.servers.lifecycle import records
from remote.shared.files import write_whole
from remote.shared.messages.extract import Counts, ExtractorState
from remote.shared.messages.history import GpuReading, Point
from remote.shared.messages.server import ServerSpec, ServerState
from remote.shared.paths import RunPaths, Workdir
from remote.shared.processes import reference
from remote.work.lock import run_lock

EVERY_SECONDS = 10.0
DAYS = 30
LINE = (
    "[2026-11-30 10:00:00] Prefill batch, #new-seq: 8, #new-token: 8192, #cached-token: 0, token usage: 0.31, "
    "#running-req: 30, #queue-req: 12, #pending-token: 0, cuda graph: False, input throughput (token/s): 51234.00\n"
)
GPUS = [
    GpuReading(
        index=index, use_percent=97, memory_bytes=1.3e11, total_bytes=1.5e11, watts=688.25, celsius=64, megahertz=1980
    )
    for index in range(8)
]  # fmt: skip


def main() -> None:
    """Measure, print and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--looks", type=int, default=300)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Workdir(Path(folder)), given.looks)
    text = json.dumps(result, indent=1)
    print(text)
    (given.out / f"history-{date.today()}.json").write_text(text + "\n")


def measure(workdir: Workdir, looks: int) -> dict[str, object]:
    """Make this number of looks as fast as possible, and return this process's CPU time."""
    paths, server = host(workdir)
    recorder = Recorder(Context(workdir, Report(io.StringIO())))
    recorder._looker._gauges.read = lambda: GPUS  # type: ignore[method-assign]
    with run_lock(paths):
        recorder.look()
        last = age(paths.history, DAYS)
        size_before = paths.history.stat().st_size
        costs = []
        for number in range(looks):
            extractor_says(paths, done=number)
            with Path(server.log).open("a") as log:
                log.write(LINE * 40)
            began = time.process_time()
            recorder.look()
            costs.append(time.process_time() - began)
    median = statistics.median(costs)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "date": str(date.today()),
        "command": f".engine/bin/python -m benchmarks.history --looks {looks}",
        "looks": looks,
        "cpu_ms_a_look": {"median": round(median * 1e3, 2), "most": round(max(costs) * 1e3, 2)},
        "share_of_a_core_percent": round(100 * statistics.mean(costs) / EVERY_SECONDS, 4),
        "days_recorded": DAYS,
        "series": len(last.values),
        "bytes_after_these_days": size_before,
        "bytes_at_the_end": paths.history.stat().st_size,
    }


def host(workdir: Workdir) -> tuple[RunPaths, ServerState]:
    """Write the files of a run and a server."""
    paths = workdir.run("kimi-1")
    paths.shards.mkdir(parents=True)
    extractor_says(paths, done=0)
    me = reference(os.getpid())
    state = ServerState(
        name="main", mode="extract", status="ready", port=1, model="m", command=["python", "-m", "sglang"] * 30,
        log=str(workdir.root / "main.log"), server=me, supervisor=me, spec=ServerSpec(model="m"),
    )  # fmt: skip
    Path(state.log).touch()
    records.save(workdir.server("main"), state)
    return paths, state


def extractor_says(paths: RunPaths, done: int) -> None:
    """Write the state file, as an extractor does about once a second."""
    counts = Counts(assigned=125_000, done=done, tokens_assigned=10**8, tokens_done=900 * done, bytes_done=10**8 * done)
    state = ExtractorState(
        run="kimi-1", epoch=1, status="running", counts=counts, tokens_per_second=51_234.5, in_flight=32,
        started_at=1.0, updated_at=time.time(), waited={"disk": 1.5, "server": 2.5},
    )  # fmt: skip
    write_whole(paths.state, state.model_dump_json(indent=1).encode(), durable=False)


def age(path: Path, days: int) -> Point:
    """Fill the history with points for `days` days before its newest point, with a commit for each hour."""
    with to_write(path)[0] as store:
        last = store.last()
        assert last is not None
        ticks, an_hour = int(days * 86_400 / EVERY_SECONDS), 360
        for first in range(0, ticks, an_hour):
            points = [
                last.model_copy(update={"at": last.at - (ticks - tick) * EVERY_SECONDS})
                for tick in range(first, min(first + an_hour, ticks))
            ]
            store.add(points, [], points[-1].at)
    return last


if __name__ == "__main__":
    main()
