"""`inv prepare` against `datasets.map` with transformers' own mask, on the same chats, cores and tokenizer, in turn.

    .engine/bin/python -m benchmarks.prepare --chats 20000 --processes 2 --out results.json
    .engine/bin/python -m benchmarks.prepare --chats 200000 --scaling 1,2,4,8,16 --out results-16.json
    .engine/bin/python -m benchmarks.prepare --chats 30000 --parent --out results-parent.json

Runs under a Python with the `data` extra; writes only its own temporary folder and the results file. Each run is a
separate process. `prepare` is the whole verb (scan, dedup, checks, shuffle, files). `map` is the one line of a training
script, `map(apply_chat_template(return_assistant_tokens_mask=True), num_proc=N)`, with what it writes to its cache.
`encode` is the tokenizer alone on texts that are already rendered. `work` is the seconds of the work itself (for
`prepare` everything, for `map` the call alone, after imports and loading), and `process` the seconds from the start of
the process to its end. The ids and masks of `prepare` and `map` are compared row by row, in any order.

With `--scaling`, `start` is the time before the first chunk is given to a worker (sources are cut and the tokenizer is
loaded), which is the same for any number of processes. With `--parent`, the same chats are read in each form of source,
and `parent_cpu` is the CPU seconds of the parent process for 1,000 chats, which more workers do not make fewer. `alone`
is a run without workers, so the work of all processes together.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOKENS_A_CHAT = 1925
FORMS = ("chats.jsonl", "chats.json", "chats.jsonl.gz", "chats.parquet")


def main() -> None:
    options = _options()
    if options.step:
        print(json.dumps(STEPS[options.step](Path(options.work), options.processes, options.source)))
        return
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        work = Path(folder)
        size = _write_inputs(work, options.chats)
        if options.parent:
            measured = _parent(options, work)
        else:
            measured = _scaling(options, work) if options.scaling else _rivals(options, work)
    document = {
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0))},
        "versions": {name: _version(name) for name in ("datasets", "transformers", "tokenizers", "tiktoken")},
        "chats": options.chats,
        "source_bytes": size,
        **measured,
    }
    print(json.dumps(document, indent=1))
    options.out.write_text(json.dumps(document, indent=1) + "\n")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turn")
    parser.add_argument("--scaling", default="", help="numbers of processes to run `prepare` with, as in 1,2,4")
    parser.add_argument("--parent", action="store_true", help="measure the parent process for each form of source")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for temporary files")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/prepare.json"))
    parser.add_argument("--step", default="", help=argparse.SUPPRESS)
    parser.add_argument("--source", default=FORMS[0], help=argparse.SUPPRESS)
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _write_inputs(work: Path, chats: int) -> int:
    from benchmarks.million import write_source, write_tokenizer

    write_tokenizer(work / "tokenizer")
    # million.py's lengths have a mean of 0.98 of what is asked for, second turns included
    return write_source(work / FORMS[0], chats, round(TOKENS_A_CHAT / 0.98))


def _parent(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    _write_other_forms(work)
    cases = {"alone": (1, FORMS[0]), **{name: (options.processes, name) for name in FORMS}}
    rounds = [{key: _run("prepare", work, *case) for key, case in cases.items()} for _ in range(options.rounds)]
    parent = {key: statistics.median(one[key]["parent_cpu"] for one in rounds) for key in cases}
    return {
        "processes": options.processes,
        "tokens": rounds[0]["alone"]["tokens"],
        "parent_cpu": {key: round(seconds * 1000 / options.chats, 5) for key, seconds in parent.items()},
        "same_content": len({one[key]["content"] for one in rounds for key in cases}) == 1,
    }


def _write_other_forms(work: Path) -> None:
    """Write the chats as a JSON array, compressed, and as a Parquet file as pyarrow writes it: in one row group."""
    import gzip

    import pyarrow
    import pyarrow.parquet

    lines = (work / FORMS[0]).read_bytes()
    (work / "chats.json").write_bytes(b"[" + b",".join(lines.splitlines()) + b"]")
    (work / "chats.jsonl.gz").write_bytes(gzip.compress(lines, 6))
    rows = [json.loads(line) for line in lines.splitlines()]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), work / "chats.parquet")


def _rivals(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    rounds = [{step: _run(step, work, options.processes) for step in STEPS} for _ in range(options.rounds)]
    seconds = {
        step: {part: round(statistics.median(one[step][part] for one in rounds), 2) for part in ("work", "process")}
        for step in STEPS
    }
    ratio = {part: round(seconds["map"][part] / seconds["prepare"][part], 2) for part in ("work", "process")}
    same = len({one[step]["content"] for one in rounds for step in ("prepare", "map")}) == 1
    return {
        "processes": options.processes,
        "tokens": rounds[0]["prepare"]["tokens"],
        "seconds": seconds,
        "times_as_fast_as_map": ratio,
        "same_ids_and_masks": same,
        "rounds": [
            {step: {k: v for k, v in found.items() if k != "content"} for step, found in one.items()} for one in rounds
        ],
    }


def _scaling(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    counts = [int(count) for count in options.scaling.split(",")]
    found = {count: _run("prepare", work, count) for count in counts}
    first = found[counts[0]]
    spread = {count: one["work"] - one["start"] for count, one in found.items()}
    base = {"work": first["work"] * counts[0], "spread": spread[counts[0]] * counts[0]}
    return {
        "tokens": first["tokens"],
        "seconds": {count: {part: one[part] for part in ("start", "work", "process")} for count, one in found.items()},
        "share_of_linear": {
            count: {
                "work": round(base["work"] / count / one["work"], 3),
                "after_start": round(base["spread"] / count / spread[count], 3),
            }
            for count, one in found.items()
        },
        "same_content": len({one["content"] for one in found.values()}) == 1,
    }


def _run(step: str, work: Path, processes: int, source: str = FORMS[0]) -> dict[str, Any]:
    begun = time.monotonic()
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.prepare", "--step", step, "--work", str(work)]
    done = subprocess.run(
        [*command, "--processes", str(processes), "--source", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    answer["process"] = round(time.monotonic() - begun - answer.pop("comparing"), 2)
    print(f"{step:8} {processes:3} processes {answer['work']:8.2f} s of {answer['process']:8.2f} s", file=sys.stderr)
    return answer


def _prepare(work: Path, processes: int, source: str) -> dict[str, Any]:
    import shutil

    from remote.context import Context
    from remote.data.dataset import DatasetFolder
    from remote.data.prepare import prepare
    from remote.report import Report
    from remote.shared.messages.dataset import PrepareRequest
    from remote.shared.paths import Workdir

    out = work / "prepared"
    request = PrepareRequest(
        inputs=[str(work / source)], out=str(out), tokenizer=str(work / "tokenizer"), processes=processes
    )
    steps = _Steps()
    started, cpu = time.monotonic(), time.process_time()
    result = prepare(request, Context(Workdir(work / "workdir"), Report(steps)))
    begun, cpu = time.monotonic(), time.process_time() - cpu
    rows = ((one.input_ids, one.loss_mask) for one in DatasetFolder.open(out).records([(0, result.manifest.records)]))
    content = _content(rows)
    shutil.rmtree(out)
    return {
        "start": round(steps.tokenizing - started, 2),
        "work": round(result.wall_seconds, 2),
        "parent_cpu": cpu,
        "tokens": result.manifest.tokens,
        "content": content,
        "comparing": time.monotonic() - begun,
    }


class _Steps(io.StringIO):
    """Notes when the first chunk is given to the workers: by then the sources are cut and the tokenizer is loaded."""

    tokenizing = 0.0

    def write(self, text: str) -> int:
        if not self.tokenizing and "tokenizing" in text:
            self.tokenizing = time.monotonic()
        return len(text)


def _map(work: Path, processes: int, source: str) -> dict[str, Any]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import shutil

    import numpy as np
    from datasets import Dataset, load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(work / "tokenizer")
    begun = time.monotonic()
    loaded: Dataset = load_dataset("json", data_files=str(work / source), split="train", cache_dir=work / "cache")

    def tokenize(row: dict[str, Any]) -> dict[str, Any]:
        made = tokenizer.apply_chat_template(
            row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return {"input_ids": made["input_ids"], "loss_mask": made["assistant_masks"]}

    mapped_from = time.monotonic()
    mapped = loaded.map(tokenize, num_proc=processes, remove_columns=loaded.column_names)
    ended = time.monotonic()
    columns = mapped.with_format("numpy")
    rows = ((row["input_ids"].astype(np.int32), row["loss_mask"].astype(np.int8)) for row in columns)
    content = _content(rows)
    shutil.rmtree(work / "cache")
    return {
        "work": round(ended - mapped_from, 2),
        "reading_json": round(mapped_from - begun, 2),
        "content": content,
        "comparing": time.monotonic() - ended,
    }


def _encode(work: Path, processes: int, source: str) -> dict[str, Any]:
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    os.environ["RAYON_NUM_THREADS"] = str(processes)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(work / "tokenizer")
    with (work / source).open() as lines:
        texts = [tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False) for line in lines]
    begun = time.monotonic()
    tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return {"work": round(time.monotonic() - begun, 2), "content": "", "comparing": 0.0}


STEPS = {"prepare": _prepare, "map": _map, "encode": _encode}


def _content(rows: Any) -> str:
    """A digest of all rows without their order."""
    import xxhash

    digests = sorted(xxhash.xxh3_128_digest(ids.tobytes() + mask.tobytes()) for ids, mask in rows)
    return str(xxhash.xxh3_128_hexdigest(b"".join(digests)))


if __name__ == "__main__":
    main()
