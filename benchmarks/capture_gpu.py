"""What capture costs on a GPU, against plain prefill and the usual ways of doing it; all in one server, interleaved.

    python -m benchmarks.capture_gpu --root ~/sglang-gpu --out benchmarks/results

`--root` is where the payload was unpacked (see benchmarks/gpu/README.md). First a small model with real weights shows
that what is captured is right on this GPU: canary at all boundaries and every row's logprob. Then eight true-width
DeepSeek-V3 layers are timed: 16 x 4,096 and 64 x 512 tokens, with a collector process draining the dumps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from benchmarks.gpu.models import MID, TINY, write_config, write_weights
from benchmarks.gpu.server import REPOSITORY, GpuServer
from remote.capture.request_id import RequestId
from remote.messages.capture import CaptureStatus
from remote.messages.server import CaptureSpec
from remote.parity.canary import check_canary
from remote.parity.head import Head, load_head
from remote.parity.logprobs import ServerLogprobs, check_logprobs

LAYERS = [2, 4, 7]
ROW_BYTES = 4 * 7168 * 2
SHAPES = {"16 x 4,096": (16, 4096), "64 x 512": (64, 512)}
Names = Callable[[str, int], list[str]]


@dataclass
class Timing:
    """Rounds of one way on one shape; microseconds a token."""

    shape: str
    way: str
    microseconds: list[float]
    over_plain: float = 0.0
    """Ratio of medians, less one."""

    @property
    def median(self) -> float:
        return statistics.median(self.microseconds)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--root", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--tp", type=int, default=1, help="ranks of tensor parallelism, over NCCL above 1")
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--rival-rounds", type=int, default=3)
    options.add_argument("--sustained-gb", type=float, default=34.0)
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"machine": machine(), "tp": given.tp, "date": datetime.date.today().isoformat()}
    mid = start_mid(given.root, given.out, given.tp)
    try:
        result |= parity_or_cause(given.root, given.out, given.tp)
        mid.wait(240)
        with Drain(mid.dumps, given.out) as drain:
            result["timings"] = [asdict(row) | {"median": row.median} for row in timings(mid, drain, given)]
            save(given.out, result)
            result["sustained"] = sustained(mid, drain, given.sustained_gb)
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


def start_mid(root: Path, out: Path, tp: int) -> GpuServer:
    model = write_config(root / "models" / "mid", MID)
    spec = CaptureSpec(layers=LAYERS, dump_dir="/dev/shm/roost-mid", high_water_bytes=16 << 30)
    flags = "--load-format dummy --mem-fraction-static 0.55 --max-total-tokens 140000 --context-length 8192"
    flags += f" --enable-return-hidden-states {ranks(tp)}"
    return GpuServer(root, model, 30012, fresh(spec), out / "mid.log", flags.split())


def ranks(tp: int) -> str:
    """Custom all-reduce needs peer memory that a virtual machine may not have; NCCL does without."""
    return f"--tp-size {tp} --disable-custom-all-reduce" if tp > 1 else ""


def fresh(spec: CaptureSpec) -> CaptureSpec:
    shutil.rmtree(spec.dump_dir, ignore_errors=True)
    return spec


def parity_or_cause(root: Path, out: Path, tp: int) -> dict[str, Any]:
    """The timings are worth having even where the small model's server does not come up."""
    try:
        return {"parity": parity(root, out, tp)}
    except (RuntimeError, ValueError, OSError) as error:
        print(f"parity: {type(error).__name__}: {error}", flush=True)
        return {"parity_failed": f"{type(error).__name__}: {error}"}


def parity(root: Path, out: Path, tp: int) -> dict[str, Any]:
    """Canary and logprobs on a model with weights, chunked and batched."""
    model = write_config(root / "models" / "tiny", TINY)
    write_weights(model, TINY, "cuda")
    spec = CaptureSpec(layers=[0, 1, 2, 3, 4, 5], dump_dir="/dev/shm/roost-tiny", high_water_bytes=8 << 30)
    flags = "--mem-fraction-static 0.40 --max-total-tokens 65536 --context-length 8192 --chunked-prefill-size 1024"
    flags += f" {ranks(tp)}"
    server = GpuServer(root, model, 30011, fresh(spec), out / "tiny.log", flags.split())
    try:
        server.wait(240)
        return {"canary": canary(server), "logprobs": logprobs(server, model)}
    finally:
        server.stop()


def canary(server: GpuServer) -> list[dict[str, Any]]:
    rows = []
    for attempt, length in enumerate((64, 1500)):
        rid = RequestId("gpu", None, attempt, length)
        server.generate({"input_ids": prompt(attempt, length, 2048), "rid": str(rid)})
        dump = await_file(server.dumps / f"{rid}.safetensors")
        listened = await_file(server.dumps / f"{rid}.canary.safetensors")
        checked = check_canary(dump, [listened])
        rows.append({"rows": length, "passed": checked.passed, "slots": [asdict(slot) for slot in checked.slots]})
    return rows


def logprobs(server: GpuServer, model: Path) -> list[dict[str, Any]]:
    head = load_head(model)
    lengths = [17, 700, 1024, 1025, 2500, 333]
    prompts = [prompt(100 + i, length, 2048) for i, length in enumerate(lengths)]
    rids = [RequestId("lp", i, 0, length) for i, length in enumerate(lengths)]
    body = {"input_ids": prompts, "rid": [str(rid) for rid in rids]}
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
    answers = server.generate({**body, **asked})
    return [
        compare(server, head, rid, tokens, answer["meta_info"])
        for rid, tokens, answer in zip(rids, prompts, answers, strict=True)
    ]


def compare(server: GpuServer, head: Head, rid: RequestId, tokens: list[int], meta: dict[str, Any]) -> dict[str, Any]:
    """One record's rows against the server's answer, as they are and shifted by one."""
    with safe_open(await_file(server.dumps / f"{rid}.safetensors"), framework="pt") as file:
        states, ids = file.get_tensor("hidden_states")[:, -1], file.get_tensor("token_ids").tolist()
    about: dict[str, Any] = {"rows": len(tokens), "tokens_equal": ids == tokens, "passed": False}
    said = ServerLogprobs.of_answer(meta)
    try:
        found = check_logprobs(states, tokens, said, head.norm_weight, head.eps, head.lm_head, head.dtype)
        shifted = check_logprobs(states.roll(1, 0), tokens, said, head.norm_weight, head.eps, head.lm_head, head.dtype)
    except ValueError as error:
        differs = [
            place for place, pair in enumerate(zip(said.next_ids, tokens[1:], strict=False)) if pair[0] != pair[1]
        ]
        return {**about, "answer": str(error), "logprobs": len(said.logprobs), "differs_at": differs[:5]}
    return {**about, **found.row(), "passed": found.passed, "shifted": shifted.row()}


def timings(server: GpuServer, drain: Drain, given: argparse.Namespace) -> list[Timing]:
    for way in ("plain", "ours", "naive", "inthread"):
        run(server, drain, way, (16, 512), 0)
    found = []
    for number, (shape, size) in enumerate(SHAPES.items()):
        rows = {way: Timing(shape, way, []) for way in ("plain", "ours", "naive", "inthread")}
        for turn in range(given.rounds):
            order = ["plain", "ours"] if turn % 2 == 0 else ["ours", "plain"]
            order += ["naive", "inthread"] if turn < given.rival_rounds else []
            for way in order:
                rows[way].microseconds.append(run(server, drain, way, size, 1000 * (number + 1) + turn))
        for row in rows.values():
            row.over_plain = row.median / rows["plain"].median - 1
            found.append(row)
            print(f"{shape} {row.way}: {row.median:.2f} us/token, {row.over_plain:+.2%} over plain", flush=True)
    return found


def run(server: GpuServer, drain: Drain, way: str, size: tuple[int, int], turn: int) -> float:
    """Microseconds a token of one batch; returns when its dumps are drained, which is not counted."""
    count, length = size
    prompts = [prompt(turn * 100 + i, length, 32768) for i in range(count)]
    rids = names(way, turn, count, length)
    since = time.perf_counter()
    server.generate({"input_ids": prompts, "rid": rids})
    seconds = time.perf_counter() - since
    if way != "plain":
        drain.wait_for(rids)
    return seconds / (count * length) * 1e6


def names(way: str, turn: int, count: int, length: int) -> list[str]:
    if way == "ours":
        return [str(RequestId("bench", turn * 1000 + i, 0, length)) for i in range(count)]
    return [f"{way}.{turn}-{i}-{length}" for i in range(count)]


def sustained(server: GpuServer, drain: Drain, gigabytes: float) -> dict[str, Any]:
    """Batches without a pause while the collector drains, against as many plain ones before and after."""
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
    """Two clients keep the queue filled, so that no batch waits for a client."""
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
        """Until every request's dumps are gone; raises TimeoutError naming one that is not."""
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
                self.bytes += row["bytes"]
                self.last_at = row["at"]


def prompt(seed: int, length: int, vocabulary: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(2, vocabulary) for _ in range(length)]


def await_file(path: Path, seconds: float = 60) -> Path:
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            found = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
            raise TimeoutError(f"no {path.name}; there is {found}")
        time.sleep(0.01)
    return path


def status(dumps: Path) -> CaptureStatus:
    return CaptureStatus.model_validate_json(next(dumps.glob(".capture-*.json")).read_bytes())


def save(out: Path, result: dict[str, Any]) -> None:
    tp = f"-tp{result['tp']}" if result["tp"] > 1 else ""
    stem = f"capture_gpu{tp}-{result['date']}"
    (out / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / f"{stem}.md").write_text(report(result))


def report(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = ["# What capture costs on a GPU", ""]
    lines += [
        ", ".join(f"{key} {value}" for key, value in result["machine"].items())
        + f"; TP {result['tp']}; {result['date']}.",
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
        errors = [slot["error"] for row in result["parity"]["canary"] for slot in row["slots"]]
        answered = [row for row in result["parity"]["logprobs"] if "excess" in row]
        excess = [row["excess"] for row in answered] or [float("nan")]
        top1 = [row["top1"] for row in answered] or [float("nan")]
        lines += [
            "",
            f"Parity in bf16: canary at all boundaries within {max(errors):.1e}; logprobs of every row of"
            f" {len(answered)} of {len(result['parity']['logprobs'])} prompts within {max(excess):.2f} of their"
            f" tolerance, top-1 agreement {min(top1):.2%} or more.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
