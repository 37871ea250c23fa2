"""Measures the steps that handle all of a million records at once: prepare, plan, assign, ledger, resume scan.

    .engine/bin/python -m benchmarks.million --records 1000000 --tokens 200 --out benchmarks/results/million.json

Runs under a Python with the `data` extra; writes only its own temporary folder and the results file. Each step is a
separate process. Memory is the peak of the step and all its worker processes together, sampled ten times a second, as
proportional set size, in which shared pages count once.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

SAMPLE_SECONDS = 0.1
WORDS = ("the", "state", "of", "a", "layer", "to", "token", "in", "model", "is", "shard", "with", "record", "digest")


@dataclass(frozen=True)
class Measured:
    """One step."""

    step: str
    seconds: float
    peak_memory_mb: float
    note: str = ""


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        work = Path(folder)
        prepared = _fabricated if options.without_prepare else _prepared
        results = [*prepared(work, options.records, options.tokens), *_handled(work)]
    for one in results:
        print(f"{one.step:24} {one.seconds:9.1f} s {one.peak_memory_mb:9.0f} MB  {one.note}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cpu": platform.processor() or platform.machine(), "cores": psutil.cpu_count(), "python": sys.version}
    document = {
        "date": datetime.date.today().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("datasets", "pyarrow", "numpy", "tokenizers")},
        "records": options.records,
        "tokens_a_record": options.tokens,
        "machine": machine,
        "steps": [asdict(one) for one in results],
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=200, help="mean length of a record")
    parser.add_argument("--without-prepare", action="store_true", help="make up the dataset instead of tokenizing one")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for temporary files")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/million.json"))
    return parser.parse_args()


def _fabricated(work: Path, records: int, tokens: int) -> Iterator[Measured]:
    yield _step("made up", ["fabricate", str(work / "dataset"), str(records), str(tokens)], "in place of prepare")


def _prepared(work: Path, records: int, tokens: int) -> Iterator[Measured]:
    source, tokenizer, dataset = work / "source.jsonl", work / "tokenizer", work / "dataset"
    size = write_source(source, records, tokens)
    write_tokenizer(tokenizer)
    request = {"inputs": [str(source)], "out": str(dataset), "tokenizer": str(tokenizer)}
    yield _verb("prepare", request, work, f"{size / 1e6:.0f} MB of JSONL")
    yield _verb("prepare", request, work, "found again", name="prepare again")


def _handled(work: Path) -> Iterator[Measured]:
    dataset = work / "dataset"
    manifest = json.loads((dataset / "manifest.json").read_bytes())
    note = f"{manifest['tokens'] / 1e6:.0f}M tokens"
    yield _step("plan", ["plan", str(dataset)], f"{note} over 64 hosts")
    yield _step("re-plan", ["replan", str(dataset)], "3 of 64 hosts lost, half done")
    yield _step("assign", ["assign", str(dataset), str(work / "given")], "one host's folder with all records")
    yield _step("ledger written", ["ledger", str(dataset), str(work / "ledger.sqlite")], "rows of 500 a commit")
    yield _step("ledger status", ["counts", str(work / "ledger.sqlite")])
    yield _step("resume scan", ["scan", str(work / "given"), str(work / "ledger.sqlite")], "what is still to do")


def _verb(verb: str, request: Mapping[str, object], work: Path, note: str, name: str = "") -> Measured:
    call = json.dumps({"verb": verb, "workdir": str(work / "workdir"), "request": request}) + "\n"
    return _watched(name or verb, [sys.executable, "-m", "remote", verb], call, note)


def _step(step: str, arguments: list[str], note: str = "") -> Measured:
    return _watched(step, [sys.executable, "-m", "benchmarks.million_steps", *arguments], "", note)


def _watched(step: str, command: list[str], stdin: str, note: str) -> Measured:
    begun = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    peak = Peak(process.pid)
    said, _ = process.communicate(stdin)
    seconds = time.monotonic() - begun
    memory = peak.stop()
    if process.returncode:
        raise SystemExit(f"{step} failed: {said[-2000:]}")
    return Measured(step, round(seconds, 2), round(memory / 1e6, 1), note)


class Peak:
    """The largest memory of a process tree, in bytes, until `stop`."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self._peak = max(self._peak, self._now())

    def _now(self) -> int:
        total = 0
        try:
            tree = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return 0
        for process in tree:
            try:
                total += process.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return total


def write_source(path: Path, records: int, tokens: int) -> int:
    """Write conversations of two and four turns, with lengths spread like chat data's and one token for each byte."""
    chance = random.Random(0)
    words = " ".join(chance.choice(WORDS) for _ in range(20_000))
    with path.open("w") as out:
        for number in range(records):
            length = min(20 * tokens, int(chance.lognormvariate(0, 0.8) * tokens * 0.6) + 8)
            start = chance.randrange(len(words) - length) if length < len(words) else 0
            turns = [f"question {number}?", words[start : start + length]]
            if number % 3 == 0:
                turns += ["and then?", words[start : start + length // 2]]
            messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
            out.write(json.dumps({"messages": messages}) + "\n")
    return path.stat().st_size


def write_tokenizer(folder: Path) -> None:
    """Write the practice models' tokenizer."""
    from hosts.practice.engine.tokenizer import write_tokenizer as write

    folder.mkdir()
    write(folder, 1 << 20)


if __name__ == "__main__":
    main()
