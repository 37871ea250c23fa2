"""Measures what capture costs on a GPU, against plain prefill and the usual methods, interleaved in one server.

    python -m benchmarks.capture_gpu --root ~/sglang-gpu --out benchmarks/results

`--root` is the folder of the unpacked payload (see benchmarks/gpu/README.md). First, a small model with real weights
shows that captured states are right on this GPU (benchmarks/gpu/parity.py). Then eight DeepSeek-V3 layers of true width
are timed: 64 x 512 and 16 x 4,096 tokens, while a collector process drains the dumps. Each result is written at once.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.models import MID, write_config
from benchmarks.gpu.parity import parity
from benchmarks.gpu.prompts import prompt
from benchmarks.gpu.server import READY_SECONDS, REPOSITORY, GpuServer
from remote.shared.messages.capture import CaptureStatus
from remote.shared.messages.server import CaptureSpec
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import register

LAYERS = [2, 4, 7]
ROW_BYTES = 4 * 7168 * 2
SHAPES = {"64 x 512": (64, 512), "16 x 4,096": (16, 4096)}
OURS = ("ours", "unsummed", "unpaced", "gathered")
"""Roost's capture; without row sums; without pacing; up to the forward pass's end (see benchmarks/gpu/rivals.py)."""
RIVALS = ("naive", "inthread")
LAYOUTS = {
    "tp": "--tp-size {gpus}",
    "dp": "--tp-size {gpus} --dp-size 2 --enable-dp-attention",
    "ep": "--tp-size {gpus} --ep-size {gpus}",
    "pp": "--tp-size {half} --pp-size 2",
}
"""SGLang's flags: tensor parallelism; attention in two data-parallel groups; experts; two pipeline stages."""


@dataclass
class Timing:
    """Rounds of one way on one shape; microseconds a token."""

    shape: str
    way: str
    microseconds: list[float]
    over_plain: float = 0.0
    """The ratio of the medians, minus one."""

    @property
    def median(self) -> float:
        return statistics.median(self.microseconds)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--root", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--logs", type=Path, help="where servers' logs go; beside the payload by default")
    options.add_argument("--gpus", default="0", help="their numbers")
    options.add_argument("--layout", choices=LAYOUTS, default="tp", help="how several GPUs share a model, over NCCL")
    options.add_argument("--rounds", type=int, default=16, help="of the shorter prompts; half of the longer ones")
    options.add_argument("--variant-rounds", type=int, default=0, help="rounds of the variants of ours, on 64 x 512")
    options.add_argument("--rival-rounds", type=int, default=3)
    options.add_argument("--sustained-gb", type=float, default=34.0, help="0 leaves it out")
    options.add_argument("--seconds", type=float, default=900.0, help="leave out what would take longer than this")
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    given.until = time.monotonic() + given.seconds
    given.parallel = parallel(given.layout, len(given.gpus.split(",")))
    given.name = f"{given.layout}{len(given.gpus.split(','))}"
    given.logs = given.logs or given.root / "logs"
    for folder in (given.out, given.logs):
        folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"machine": machine(), "layout": given.name, "date": datetime.date.today().isoformat()}
    mid = start_mid(given)
    try:
        result |= parity_or_cause(given)
        save(given.out, result)
        mid.wait(READY_SECONDS)
        for way in OURS:
            register(mid.dumps, way)
        with Drain(mid.dumps, given.logs) as drain:
            result["timings"] = []
            for shape in SHAPES:
                result["timings"] += [asdict(row) | {"median": row.median} for row in timings(mid, drain, shape, given)]
                result["dumps_with_right_sums"] = drain.compared
                save(given.out, result)
            if given.sustained_gb and time.monotonic() + sustained_seconds(result, given) < given.until:
                result["sustained"] = sustained(mid, drain, given.sustained_gb)
                save(given.out, result)
        if given.rival_rounds:
            result["return_hidden_states"] = own_return(mid)
        result["capture"] = json.loads(status(mid.dumps).model_dump_json())
    finally:
        mid.stop()
        save(given.out, result)
    print(report(result))


def machine() -> dict[str, str]:
    from importlib.metadata import version

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "sglang": "0.5.17",
        "python": platform.python_version(),
        "transformers": version("transformers"),
    }


def start_mid(given: argparse.Namespace) -> GpuServer:
    model = write_config(given.root / "models" / "mid", MID)
    spec = CaptureSpec(layers=LAYERS, dump_dir="/dev/shm/roost-mid", high_water_bytes=16 << 30)
    shutil.rmtree(spec.dump_dir, ignore_errors=True)
    flags = "--load-format dummy --mem-fraction-static 0.85 --max-total-tokens 140000 --context-length 8192"
    flags += f" --enable-return-hidden-states {given.parallel}"
    return GpuServer(given.root, model, 30012, spec, given.logs / f"mid-{given.name}.log", flags.split(), given.gpus)


def parallel(layout: str, gpus: int) -> str:
    """SGLang's flags for a layout; raises ValueError if it needs another number of GPUs.

    Custom all-reduce needs peer memory that a virtual machine may not have; NCCL does without.
    """
    if layout != "tp" and gpus % 2:
        raise ValueError(f"The layout {layout} needs an even number of GPUs; --gpus names {gpus}.")
    flags = f"{LAYOUTS[layout].format(gpus=gpus, half=gpus // 2)} --disable-custom-all-reduce"
    return f"{flags} --enforce-disable-flashinfer-allreduce-fusion" if gpus > 1 else ""


def parity_or_cause(given: argparse.Namespace) -> dict[str, Any]:
    """Return the parity results, or the cause why there are none; the timings are useful without them."""
    try:
        return {"parity": parity(given.root, given.logs, given.gpus, given.parallel)}
    except Exception as error:
        print(f"parity: {type(error).__name__}: {error}", flush=True)
        return {"parity_failed": f"{type(error).__name__}: {error}"}


def timings(server: GpuServer, drain: Drain, shape: str, given: argparse.Namespace) -> list[Timing]:
    number, size = list(SHAPES).index(shape), SHAPES[shape]
    rounds = given.rounds if number == 0 else max(1, given.rounds // 2)
    most = {"plain": rounds, "ours": rounds, "unsummed": rounds} | dict.fromkeys(RIVALS, given.rival_rounds)
    if number == 0:
        most |= dict.fromkeys(OURS[2:], given.variant_rounds)
    rows = {way: Timing(shape, way, []) for way in most if most[way]}
    for way in rows:
        run(server, drain, way, (16, 512), 100 * number)
    for turn in range(rounds):
        order = [way for way in rows if turn < most[way]]
        for way in order[turn % len(order) :] + order[: turn % len(order)]:
            rows[way].microseconds.append(run(server, drain, way, size, 1000 * (number + 1) + turn))
    for row in rows.values():
        row.over_plain = row.median / rows["plain"].median - 1
        print(f"{shape} {row.way}: {row.median:.2f} us/token, {row.over_plain:+.2%} over plain", flush=True)
    return list(rows.values())


def run(server: GpuServer, drain: Drain, way: str, size: tuple[int, int], turn: int) -> float:
    """Return the microseconds a token of one batch, after its dumps are drained; the draining is not counted."""
    count, length = size
    prompts = [prompt(turn * 100 + i, length, 32768) for i in range(count)]
    rids = names(way, turn, count, length)
    since = time.perf_counter()
    server.generate({"input_ids": prompts, "rid": rids})
    seconds = time.perf_counter() - since
    if way not in ("plain", "gathered"):
        drain.wait_for(rids)
    return seconds / (count * length) * 1e6


def names(way: str, turn: int, count: int, length: int) -> list[str]:
    if way in OURS:
        return [str(RequestId(way, turn * 1000 + i, 0, length)) for i in range(count)]
    return [f"{way}.{turn}-{i}-{length}" for i in range(count)]


def sustained_seconds(result: dict[str, Any], given: argparse.Namespace) -> float:
    """Return how long the sustained measurement will take: one captured and two plain runs."""
    plain = next(row["median"] for row in result["timings"] if (row["shape"], row["way"]) == ("16 x 4,096", "plain"))
    return float(3.3 * given.sustained_gb * 1e9 / ROW_BYTES * plain / 1e6 + 5)


def sustained(server: GpuServer, drain: Drain, gigabytes: float) -> dict[str, Any]:
    """Run batches without a pause while the collector drains, and as many plain batches before and after."""
    count, length = SHAPES["16 x 4,096"]
    batches = int(gigabytes * 1e9 / (count * length * ROW_BYTES)) + 1
    plain = [back_to_back(server, "plain", batches, 50_000)]
    drain.forget()
    ours = back_to_back(server, "ours", batches, 60_000)
    last = time.time()
    wanted = [name for turn in range(batches) for name in names("ours", 60_000 + turn, count, length)]
    drain.wait_for(wanted)
    plain.append(back_to_back(server, "plain", batches, 70_000))
    tokens = batches * count * length
    return {
        "batches": batches,
        "tokens": tokens,
        "gigabytes": drain.bytes / 1e9,
        "seconds": ours,
        "plain_seconds": plain,
        "over_plain": ours / statistics.mean(plain) - 1,
        "gigabytes_per_second": drain.bytes / 1e9 / ours,
        "drained_seconds_after_last_answer": drain.last_at - last,
    }


def back_to_back(server: GpuServer, way: str, batches: int, turn: int) -> float:
    """Run batches from two clients, which keep the queue filled, so that no batch waits for a client."""
    from concurrent.futures import ThreadPoolExecutor

    count, length = SHAPES["16 x 4,096"]
    bodies = [
        {
            "input_ids": [prompt(i, length, 32768) for i in range(count)],
            "rid": names(way, turn + batch, count, length),
        }
        for batch in range(batches)
    ]
    since = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(server.generate, bodies))
    return time.perf_counter() - since


def own_return(server: GpuServer) -> dict[str, float]:
    """SGLang's own way: the final state in the answer, as JSON lists. One prompt of 512 tokens."""
    seconds: dict[str, list[float]] = {"plain": [], "returned": []}
    for turn in range(6):
        tokens = prompt(90_000 + turn, 512, 32768)
        for way, asked in (("plain", False), ("returned", True)):
            since = time.perf_counter()
            server.generate({"input_ids": tokens, "return_hidden_states": asked})
            seconds[way].append(time.perf_counter() - since)
    return {way: statistics.median(values[1:]) / 512 * 1e6 for way, values in seconds.items()}


class Drain:
    """The collector process of `benchmarks.gpu.drain`."""

    def __init__(self, directory: Path, out: Path) -> None:
        self._log = out / "drain.jsonl"
        self._seen: set[str] = set()
        self._offset = 0
        self.bytes = 0
        self.last_at = 0.0
        self.compared = 0
        """Dumps whose row sums were computed again from their rows, and were the same."""
        self._command = [sys.executable, "-m", "benchmarks.gpu.drain", str(directory)]

    def __enter__(self) -> Drain:
        with self._log.open("wb") as stream:
            self._process = subprocess.Popen(self._command, stdout=stream, cwd=REPOSITORY, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.unlink()

    def forget(self) -> None:
        self._read()
        self.bytes = 0

    def wait_for(self, rids: Sequence[str], seconds: float = 120) -> None:
        """Wait until the dumps of all requests are gone; raise TimeoutError with the name of a remaining dump."""
        deadline = time.monotonic() + seconds
        missing = set(rids)
        while missing:
            self._read()
            failed = [name for name in self._seen if name.endswith(".error.json")]
            if failed:
                raise RuntimeError(f"capture gave up {failed[0]}")
            missing = {rid for rid in missing if not any(name.startswith(f"{rid}.") for name in self._seen)}
            if time.monotonic() > deadline:
                raise TimeoutError(f"no dump of {sorted(missing)[0]}")
            time.sleep(0.01)
        self._seen.clear()

    def _read(self) -> None:
        with self._log.open() as stream:
            stream.seek(self._offset)
            for line in iter(stream.readline, ""):
                if not line.endswith("\n"):
                    break
                self._offset += len(line)
                row = json.loads(line)
                self._seen.add(row["name"])
                self.compared += "summed" in row
                if not row.get("summed", True):
                    raise RuntimeError(f"the rows of {row['name']} do not have the sums that capture computed")
                self.bytes += row["bytes"]
                self.last_at = row["at"]


def status(dumps: Path) -> CaptureStatus:
    return CaptureStatus.model_validate_json(next(dumps.glob(".capture-*.json")).read_bytes())


def save(out: Path, result: dict[str, Any]) -> None:
    layout = "" if result["layout"] == "tp1" else f"-{result['layout']}"
    stem = f"capture_gpu{layout}-{result['date']}"
    (out / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / f"{stem}.md").write_text(report(result))


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = ["# What capture costs on a GPU", ""]
    lines += [
        ", ".join(f"{key} {value}" for key, value in result["machine"].items())
        + f"; layout {result['layout']}; {result['date']}.",
        "",
    ]
    if "timings" in result:
        lines += [f"Eight true-width DeepSeek-V3 layers, boundaries {LAYERS} and 8: {ROW_BYTES:,} B a token.", ""]
        lines += [
            "| shape | way | us a token, median (lowest .. highest) | rounds | over plain |",
            "|---|---|---|---|---|",
        ]
        for row in result["timings"]:
            values = row["microseconds"]
            spread = f"{row['median']:.2f} ({min(values):.2f} .. {max(values):.2f})"
            lines.append(f"| {row['shape']} | {row['way']} | {spread} | {len(values)} | {row['over_plain']:+.2%} |")
    if "dumps_with_right_sums" in result:
        lines += [
            "",
            f"Row sums of {result['dumps_with_right_sums']:,} dumps computed again on the host: all the same.",
        ]
    if "sustained" in result:
        found = result["sustained"]
        lines += [
            "",
            f"Sustained: {found['gigabytes']:.1f} GB in {found['seconds']:.1f} s"
            f" ({found['gigabytes_per_second']:.2f} GB/s) with the collector draining,"
            f" {found['over_plain']:+.2%} over the plain runs before and after it"
            f" ({', '.join(f'{value:.1f} s' for value in found['plain_seconds'])}).",
        ]
    if "return_hidden_states" in result:
        own = result["return_hidden_states"]
        lines += [
            "",
            f"SGLang's return_hidden_states, 1 x 512: {own['returned']:.0f} us a token, plain {own['plain']:.0f}.",
        ]
    if "parity" in result:
        lines += parity_lines(result["parity"])
    return "\n".join(lines) + "\n"


def parity_lines(found: dict[str, Any]) -> list[str]:
    """Return the errors of a right capture in bf16, and beside them the smallest errors of each planted fault."""
    canary, logprobs = found["canary"], found["logprobs"]
    largest = max(max(row["errors"]) for row in canary["checked"])
    nats, shares = logprobs["nats"], logprobs["of_tolerance"]
    lines = ["", "## Parity in bf16, a small model with weights", ""]
    lines += [f"Top-1 agreement over {logprobs['rows']:,} rows: {logprobs['top1']:.2%}.", ""]
    lines += ["| | canary: row's relative error | logprobs: nats | logprobs: share of the tolerance |"]
    lines += ["|---|---|---|---|"]
    lines += [f"| right, largest | {largest:.1e} | {nats['1.0']:.3f} | {shares['1.0']:.2f} |"]
    lines += [f"| right, 99% of rows below | | {nats['0.99']:.3f} | {shares['0.99']:.2f} |"]
    lines += [f"| right, median | | {nats['0.5']:.4f} | {shares['0.5']:.3f} |"]
    lines += [f"| tolerance | {canary['tolerance']:.0e} | of each row | 1 |"]
    for name, planted in logprobs["planted"].items():
        error = canary["planted_smallest_error"][name]
        lines += [f"| {name}, smallest | {error:.1e} | {planted['nats']:.2f} | {planted['of_tolerance']:.1f} |"]
    return lines


if __name__ == "__main__":
    main()
