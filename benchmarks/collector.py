"""Measures the collector: validated, hashed, fsynced GB/s from the RAM disk to the disk, against `cp` and naive code.

Run under the engine's Python: `python -m benchmarks.collector [--disk DIR …] [--workers N] [--gigabytes G]`.
Different methods copy the same dumps from /dev/shm, interleaved round by round, each with fsync:

- collector: `remote.extract.store.store`, N threads: header, token ids and every row checked, xxh3-128, copy, fsync
- without sums: the same with the row sums left out (remote/shared/shard/rowsums.py)
- before (`--before CHECKOUT`): the `store` of another checkout, in a process that is started there
- cp: `cp` of the same files by as many processes, then an fsync of each file
- naive: `torch.load` and `torch.save` of the same tensors, one thread, as harvesting scripts do today, then an fsync

Writes `benchmarks/results/collector-<date>.json`, with the machine and the versions.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xxhash

from remote.extract.dump import Expected, token_digest
from remote.extract.store import store
from remote.shared.messages.extract import Assignment
from remote.shared.messages.run import RunIdentity
from remote.shared.shard.layout import Layout
from remote.shared.shard.rowsums import NAME, RowSums, text

SLOTS, HIDDEN = 4, 7168
ROWS = {"15 MB": 262, "135 MB": 2353}
IDENTITY = RunIdentity(
    name="benchmark",
    nonce="0" * 16,
    dataset="",
    tokenizer="",
    model="",
    model_path="",
    boundaries=(3, 31, 59, 61),
    final="pre",
    hidden_size=HIDDEN,
    dtype="BF16",
)
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Case:
    """Dumps of one size, and the folder to which they are copied."""

    dumps: list[Path]
    tensors: list[Path]
    """The same records as `torch.save` files, for the naive method."""
    expected: list[Expected]
    disk: Path
    workers: int

    @property
    def size_bytes(self) -> int:
        return sum(dump.stat().st_size for dump in self.dumps)


def write_dump(path: Path, index: int, rows: int) -> Expected:
    """Write a dump in capture's layout, with random bf16 states."""
    generator = torch.Generator().manual_seed(index)
    tokens = np.random.default_rng(index).integers(0, 160_000, rows).astype(np.int32)
    states = torch.randn((rows, SLOTS, HIDDEN), generator=generator, dtype=torch.bfloat16)
    norms = states.float().norm(dim=2)
    rid = f"roost.bench.{index}.1.{rows}"
    sums = RowSums(index, IDENTITY.boundaries)
    sums.add(states.view(torch.uint8).numpy())
    metadata = {
        "rid": rid,
        "index": str(index),
        "rows": str(rows),
        "token_digest": token_digest(tokens),
        "boundaries": json.dumps(IDENTITY.boundaries),
        "final": "pre",
        "finite": "true",
        NAME: text(sums.totals),
        "sglang": "bench",
        "capture": "bench",
        "mean_norm": json.dumps(norms.mean(dim=0).tolist()),
        "max_norm": json.dumps(norms.amax(dim=0).tolist()),
    }
    with path.open("wb") as out:
        out.write(Layout(rows, SLOTS, HIDDEN, "BF16").header(metadata))
        out.write(tokens.astype("<i8").tobytes())
        out.write(states.view(torch.uint8).numpy().data)
    torch.save({"input_ids": torch.from_numpy(tokens).long(), "hidden_states": states}, path.with_suffix(".pt"))
    return Expected(rid, index, tokens, IDENTITY, "bench", "bench")


def collector(case: Case) -> None:
    """Run Roost's collector."""
    with ThreadPoolExecutor(case.workers) as pool:
        targets = [case.disk / f"hs_{number}.safetensors" for number in range(len(case.dumps))]
        list(pool.map(store, case.dumps, targets, case.expected))


def without_sums(case: Case) -> None:
    """Run Roost's collector without computing and comparing row sums."""
    add, compare = RowSums.add, RowSums.compare
    RowSums.add = RowSums.compare = lambda *_: None  # type: ignore[method-assign,assignment]
    try:
        collector(case)
    finally:
        RowSums.add, RowSums.compare = add, compare  # type: ignore[method-assign]


class Before:
    """The collector of another checkout: a process that stores a case on request, and answers with the seconds."""

    def __init__(self, checkout: Path) -> None:
        command = [sys.executable, "-c", ELSEWHERE]
        self._process = subprocess.Popen(
            command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."}
        )

    def __call__(self, case: Case) -> tuple[float, float]:
        """Store a case; return its seconds and CPU seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pairs = zip(case.dumps, case.expected, strict=True)
        said = [(str(dump), one.rid, one.index, one.tokens.tolist()) for dump, one in pairs]
        order = {"disk": str(case.disk), "workers": case.workers, "dumps": said, "identity": IDENTITY.model_dump()}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        wall, cpu = self._process.stdout.readline().split()
        return float(wall), float(cpu)


ELSEWHERE = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from remote.extract.dump import Expected
from remote.extract.store import store
try:
    from remote.shared.messages.run import RunIdentity as Identity
except ImportError:
    from remote.shared.messages.extract import Identity
for line in sys.stdin:
    order = json.loads(line)
    identity = Identity(**{name: value for name, value in order["identity"].items() if name in Identity.model_fields})
    expected = [Expected(r, i, np.array(t, np.int32), identity, "bench", "bench") for _, r, i, t in order["dumps"]]
    dumps = [Path(dump) for dump, *_ in order["dumps"]]
    targets = [Path(order["disk"]) / f"hs_{number}.safetensors" for number in range(len(dumps))]
    since, used = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(order["workers"]) as pool:
        list(pool.map(store, dumps, targets, expected))
    print(time.perf_counter() - since, time.process_time() - used, flush=True)
"""


def copy(case: Case) -> None:
    """Run `cp`, as many at once as the collector has workers."""

    def one(dump: Path) -> None:
        target = case.disk / dump.name
        subprocess.run(["cp", str(dump), str(target)], check=True)
        sync(target)

    with ThreadPoolExecutor(case.workers) as pool:
        list(pool.map(one, case.dumps))


def naive(case: Case) -> None:
    """Load and save each record, one after the other."""
    for path in case.tensors:
        target = case.disk / path.name
        torch.save(torch.load(path, weights_only=True), target)
        sync(target)


def sync(path: Path) -> None:
    """fsync one file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


WAYS: dict[str, Callable[[Case], tuple[float, float] | None]] = {
    "collector": collector,
    "without sums": without_sums,
    "cp": copy,
    "naive": naive,
}


def measure(case: Case, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return GB/s and CPU seconds a GB for every method. Each round begins with another method.

    The CPU seconds of `cp` are not counted, because it is another process.
    """
    found: dict[str, dict[str, list[float]]] = {name: {"speed": [], "cpu": []} for name in WAYS}
    names = list(WAYS)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            shutil.rmtree(case.disk, ignore_errors=True)
            case.disk.mkdir()
            os.sync()
            start, used = time.perf_counter(), time.process_time()
            took = WAYS[name](case) or (time.perf_counter() - start, time.process_time() - used)
            found[name]["speed"].append(case.size_bytes / took[0] / 1e9)
            found[name]["cpu"].append(took[1] / case.size_bytes * 1e9)
    shutil.rmtree(case.disk, ignore_errors=True)
    return found


def machine() -> dict[str, str]:
    """Return the machine on which the numbers were measured."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": str(os.cpu_count()),
        "load": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "xxhash": xxhash.VERSION,
    }


def measured(
    disk: Path, workers: int, gigabytes: float, rounds: int
) -> Iterator[tuple[str, dict[str, dict[str, list[float]]]]]:
    """Measure all methods for records of each size, in a new folder on this disk."""
    for label, rows in ROWS.items():
        count = max(1, round(gigabytes * 1e9 / (rows * SLOTS * HIDDEN * 2)))
        with tempfile.TemporaryDirectory(dir="/dev/shm") as ram, tempfile.TemporaryDirectory(dir=disk) as out:
            dumps = [Path(ram) / f"{number}.safetensors" for number in range(count)]
            expected = [write_dump(dump, number, rows) for number, dump in enumerate(dumps)]
            tensors = [dump.with_suffix(".pt") for dump in dumps]
            yield label, measure(Case(dumps, tensors, expected, Path(out) / "out", workers), rounds)


def file_system(folder: Path) -> str:
    """Return the type of the file system, as `stat` names it."""
    command = ["stat", "--file-system", "--format", "%T", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", type=Path, nargs="+", default=[Path.cwd()], help="folders on the disks to measure")
    parser.add_argument("--workers", type=int, default=Assignment.model_fields["workers"].default)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of dumps a size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="all by default")
    parser.add_argument("--before", type=Path, help="a checkout of an older version, measured beside this one")
    options = parser.parse_args()
    for name in WAYS.keys() - set(options.ways):
        del WAYS[name]
    if options.before:
        WAYS["before"] = Before(options.before)
    results: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
    for disk in options.disk:
        kind = file_system(disk)
        if kind in results:
            kind += f" {len(results) + 1}"
        results[kind] = {}
        for label, found in measured(disk, options.workers, options.gigabytes, options.rounds):
            results[kind][label] = found
            for name, values in found.items():
                speeds, cpu = values["speed"], statistics.median(values["cpu"])
                spread = f"({min(speeds):.2f} to {max(speeds):.2f}), {cpu:.2f} CPU s a GB"
                print(f"{kind:>6} {label:>7} {name:<12} {statistics.median(speeds):6.2f} GB/s  {spread}", flush=True)
    date = datetime.date.today().isoformat()
    document = {"date": date, "machine": machine(), "workers": options.workers, "measured": results}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"collector-{date}.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
