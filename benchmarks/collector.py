"""What the collector costs: validated, hashed, fsynced GB/s from the RAM disk to the disk, against `cp` and naive code.

Run under the engine's Python: `python -m benchmarks.collector [--disk DIR …] [--workers N] [--gigabytes G]`.
Three ways over the same dumps in /dev/shm, interleaved round by round, fsync included in each:

- collector: `remote.extract.store.store`, N threads: header, token ids and every row checked, xxh3-128, copy, fsync
- cp: `cp` of the same files by as many processes, then an fsync of each
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

SLOTS, HIDDEN = 4, 7168
ROWS = {"15 MB": 262, "135 MB": 2353}
ROUNDS = 3
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
    """Dumps of one size, and where they go."""

    dumps: list[Path]
    tensors: list[Path]
    """The same records as `torch.save` files, for the naive way."""
    expected: list[Expected]
    disk: Path
    workers: int

    @property
    def size_bytes(self) -> int:
        return sum(dump.stat().st_size for dump in self.dumps)


def write_dump(path: Path, index: int, rows: int) -> Expected:
    """A dump as capture lays it out, of random bf16 states."""
    generator = torch.Generator().manual_seed(index)
    tokens = np.random.default_rng(index).integers(0, 160_000, rows).astype(np.int32)
    states = torch.randn((rows, SLOTS, HIDDEN), generator=generator, dtype=torch.bfloat16)
    norms = states.float().norm(dim=2)
    rid = f"roost.bench.{index}.1.{rows}"
    metadata = {
        "rid": rid,
        "index": str(index),
        "rows": str(rows),
        "token_digest": token_digest(tokens),
        "boundaries": json.dumps(IDENTITY.boundaries),
        "final": "pre",
        "finite": "true",
        "sglang": "bench",
        "capture": "bench",
        "mean_norm": json.dumps(norms.mean(dim=0).tolist()),
        "max_norm": json.dumps(norms.amax(dim=0).tolist()),
    }
    size = states.numel() * 2
    header = {
        "__metadata__": metadata,
        "token_ids": {"dtype": "I64", "shape": [rows], "data_offsets": [0, 8 * rows]},
        "hidden_states": {
            "dtype": "BF16",
            "shape": [rows, SLOTS, HIDDEN],
            "data_offsets": [8 * rows, 8 * rows + size],
        },
    }
    text = json.dumps(header).encode().ljust(4088)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.write(tokens.astype("<i8").tobytes())
        out.write(states.view(torch.uint8).numpy().data)
    torch.save({"input_ids": torch.from_numpy(tokens).long(), "hidden_states": states}, path.with_suffix(".pt"))
    return Expected(rid, index, tokens, IDENTITY, "bench", "bench")


def collector(case: Case) -> None:
    """Ours."""
    with ThreadPoolExecutor(case.workers) as pool:
        targets = [case.disk / f"hs_{number}.safetensors" for number in range(len(case.dumps))]
        list(pool.map(store, case.dumps, targets, case.expected))


def copy(case: Case) -> None:
    """`cp`, as many at once as the collector has workers."""

    def one(dump: Path) -> None:
        target = case.disk / dump.name
        subprocess.run(["cp", str(dump), str(target)], check=True)
        sync(target)

    with ThreadPoolExecutor(case.workers) as pool:
        list(pool.map(one, case.dumps))


def naive(case: Case) -> None:
    """Load and save, one after the other."""
    for path in case.tensors:
        target = case.disk / path.name
        torch.save(torch.load(path, weights_only=True), target)
        sync(target)


def sync(path: Path) -> None:
    """fsync one file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


WAYS: dict[str, Callable[[Case], None]] = {"collector": collector, "cp": copy, "naive": naive}


def measure(case: Case) -> dict[str, list[float]]:
    """GB/s of every round, by way; the order turns with the rounds, so that no way always comes first."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    names = list(WAYS)
    for turn in range(ROUNDS):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            shutil.rmtree(case.disk, ignore_errors=True)
            case.disk.mkdir()
            os.sync()
            start = time.perf_counter()
            WAYS[name](case)
            found[name].append(case.size_bytes / (time.perf_counter() - start) / 1e9)
    shutil.rmtree(case.disk, ignore_errors=True)
    return found


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "xxhash": xxhash.VERSION,
    }


def measured(disk: Path, workers: int, gigabytes: float) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """All ways for records of each size, into a folder of their own on this disk."""
    for label, rows in ROWS.items():
        count = max(1, round(gigabytes * 1e9 / (rows * SLOTS * HIDDEN * 2)))
        with tempfile.TemporaryDirectory(dir="/dev/shm") as ram, tempfile.TemporaryDirectory(dir=disk) as out:
            dumps = [Path(ram) / f"{number}.safetensors" for number in range(count)]
            expected = [write_dump(dump, number, rows) for number, dump in enumerate(dumps)]
            tensors = [dump.with_suffix(".pt") for dump in dumps]
            yield label, measure(Case(dumps, tensors, expected, Path(out) / "out", workers))


def file_system(folder: Path) -> str:
    """Its type, as `stat` names it."""
    command = ["stat", "--file-system", "--format", "%T", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", type=Path, nargs="+", default=[Path.cwd()], help="folders on the disks to measure")
    parser.add_argument("--workers", type=int, default=Assignment.model_fields["workers"].default)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of dumps a size")
    options = parser.parse_args()
    results: dict[str, dict[str, dict[str, list[float]]]] = {}
    for disk in options.disk:
        kind = file_system(disk)
        if kind in results:
            kind += f" {len(results) + 1}"
        results[kind] = {}
        for label, found in measured(disk, options.workers, options.gigabytes):
            results[kind][label] = found
            for name, speeds in found.items():
                spread = f"({min(speeds):.2f} to {max(speeds):.2f})"
                print(f"{kind:>6} {label:>7} {name:<10} {statistics.median(speeds):6.2f} GB/s  {spread}", flush=True)
    date = datetime.date.today().isoformat()
    document = {"date": date, "machine": machine(), "workers": options.workers, "gigabytes_per_second": results}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"collector-{date}.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
