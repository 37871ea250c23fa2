"""Measures the output tokens a second of `inv answer`'s answerer and of SGLang's bench_serving, in turns on one server.

On a machine with a GPU and the payload of `benchmarks/gpu` (see its README), from the repository's root:

    PYTHONPATH=~/sglang-gpu/site:. python3 -m benchmarks.answers --root ~/sglang-gpu --out benchmarks/results

On CPU, with the practice engine and a tiny model's folder:

    .engine/bin/python -m benchmarks.answers --cpu MODEL --prompts 24 --concurrency 4 --input 64 --output 32 --out DIR

Both sides send the same number of prompts of random ids, with the same lengths and the same number of open requests.
The model's weights are random, so almost no answer ends early. Rounds alternate, and each side's prompts are new in
every round, so no cache helps. A rate is the number of sampled tokens over the time from the first request to the last
answer. The rate over the answerer's whole session, with its start and its ledger, is given separately.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.server import serving
from hosts.practice.engine.tokenizer import write_tokenizer
from hosts.practice.serving import CpuServer
from remote.bench.generator import MODULES
from remote.context import Context
from remote.data.template import template_digest
from remote.data.tokenizer import TokenizerSpec, load
from remote.report import Report
from remote.servers.lifecycle import key, records
from remote.shared.messages.extract import Assignment
from remote.shared.messages.run import Answering, RunIdentity, new_nonce
from remote.shared.messages.server import ServerSpec, ServerState
from remote.shared.paths import ASSIGNMENT_FILE, CONVERSATIONS_FILE, TOKENS_FILE, Workdir
from remote.shared.processes import reference
from remote.work.client import Answer, Client
from remote.work.launch import run_here

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
"""Llama 3.1 8B's shape, served with random weights (`--load-format dummy`)."""
CONTEXT = 4096
GPU_FLAGS = (
    "--load-format=dummy",
    "--attention-backend=triton",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--mm-feature-transport=cpu",
    "--random-seed=1",
    f"--context-length={CONTEXT}",
    "--cuda-graph-max-bs=256",
    "--max-running-requests=256",
)
READY_SECONDS = 150.0


class GpuServing:
    """One server of the payload, with CUDA graphs and radix cache on."""

    def __init__(self, root: Path, model: Path, log: Path, fraction: float) -> None:
        self.port, self.log = 30013, log
        self.command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
        self.command += ["--port", str(self.port), f"--mem-fraction-static={fraction}", *GPU_FLAGS]
        self._env = serving(root)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Return when it is healthy; raises RuntimeError with the log's end otherwise."""
        import urllib.request

        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health_generate", timeout=20):
                    return
            except OSError:
                time.sleep(0.5)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])
        self.stop()
        raise RuntimeError(f"the server did not become healthy:\n{tail}")

    def stop(self) -> None:
        import contextlib
        import signal

        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)


def by_bench_serving(options: argparse.Namespace, model: Path, port: int, seed: int, folder: Path) -> float:
    """Return the output tokens a second that bench_serving reports."""
    out = folder / f"bench-{seed}.jsonl"
    arguments = [
        *("--backend", "sglang", "--host", "127.0.0.1", "--port", str(port), "--model", str(model)),
        *("--tokenizer", str(model), "--dataset-name", "random-ids", "--num-prompts", str(options.prompts)),
        *("--random-input-len", str(options.input), "--random-output-len", str(options.output)),
        *("--random-range-ratio", "1.0", "--max-concurrency", str(options.concurrency), "--seed", str(seed)),
        *("--tokenize-prompt", "--warmup-requests", "1", "--output-file", str(out)),
    ]
    module = _bench_module()
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode or not out.exists():
        raise RuntimeError(f"bench_serving failed: {(done.stderr or done.stdout)[-2000:]}")
    result = json.loads(out.read_text().splitlines()[-1])
    if result["completed"] != options.prompts:
        raise RuntimeError(f"bench_serving completed {result['completed']} of {options.prompts} requests")
    return float(result["output_throughput"])


def _bench_module() -> str:
    import importlib.util

    for name in MODULES:
        try:
            if importlib.util.find_spec(name) is not None:
                return name
        except ModuleNotFoundError:
            continue
    raise RuntimeError("this SGLang has no bench_serving")


class Watched:
    """The times of the answerer's first request and last answer, and the number of sampled tokens."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.tokens = 0
        self._generate = Client.generate

    def __enter__(self) -> Watched:
        watched, generate = self, self._generate

        async def timed(client: Client, *arguments: Any, **named: Any) -> Answer:
            watched.began = watched.began or time.monotonic()
            answer = await generate(client, *arguments, **named)
            watched.ended = time.monotonic()
            watched.tokens += len(answer.said["output_ids"])
            return answer

        Client.generate = timed  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Client.generate = self._generate  # type: ignore[method-assign]


def by_answerer(
    options: argparse.Namespace, model: Path, server: Any, seed: int, folder: Path, workdir: Workdir
) -> dict[str, float]:
    """Return the answerer's output tokens a second, and those over its whole session."""
    run = f"bench-{seed}"
    paths = workdir.run(run)
    _assign(paths.assignment(1), options, model, run, seed)
    _record(workdir, server, model)
    began = time.monotonic()
    with Watched() as watched, (folder / f"{run}.log").open("w") as log:
        state = run_here(paths, Context(workdir, Report(log)))
    whole = time.monotonic() - began
    if state.counts.done != options.prompts:
        raise RuntimeError(f"{state.counts.done} of {options.prompts} prompts were answered")
    return {
        "output_tokens_per_second": watched.tokens / (watched.ended - watched.began),
        "session_tokens_per_second": watched.tokens / whole,
        "sampled": watched.tokens,
    }


def _assign(folder: Path, options: argparse.Namespace, model: Path, run: str, seed: int) -> None:
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    tokenizer = load(TokenizerSpec(str(model)))
    ids = np.random.default_rng(seed).integers(0, 256, (options.prompts, options.input)).astype(np.int32)
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    arrays = {
        "index": np.arange(options.prompts, dtype=np.int64),
        "offset": np.arange(options.prompts + 1, dtype=np.int64) * options.input,
        "token_ids": ids.reshape(-1),
        "expected": np.full(options.prompts, options.input + options.output, np.int32),
    }
    save_file(arrays, folder / TOKENS_FILE)
    (folder / CONVERSATIONS_FILE).write_text("\n" * options.prompts)
    settings = Answering(temperature=0.0, max_tokens=options.output, template=template_digest(tokenizer))
    identity = RunIdentity(
        name=run,
        nonce=new_nonce(),
        dataset="random",
        tokenizer=tokenizer.digest,
        model="random",
        model_path=str(model),
        boundaries=(),
        final="pre",
        hidden_size=0,
        dtype="BF16",
        answers=settings,
    )
    assignment = Assignment(
        identity=identity,
        host="here",
        epoch=1,
        ranges=[(0, options.prompts)],
        records=options.prompts,
        tokens=int(ids.size),
        expected_tokens=options.prompts * (options.input + options.output),
        vocab_size=vocabulary,
        context_length=CONTEXT,
        min_free_bytes=0,
        concurrency=options.concurrency,
    )
    (folder / ASSIGNMENT_FILE).write_text(assignment.model_dump_json())


def _record(workdir: Workdir, server: Any, model: Path) -> None:
    """Return the server's record in the form in which a supervisor keeps it."""
    paths = workdir.server("main")
    key.issue(paths, {}, closes_admin=True)
    state = ServerState(
        name="main",
        mode="serve",
        status="ready",
        port=server.port,
        model=str(model),
        command=server.command,
        log=str(server.log),
        server=reference(server.pid),
        spec=ServerSpec(model=str(model), mode="serve"),
    )
    records.save(paths, state)


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="where the GPU's payload was unpacked")
    parser.add_argument("--cpu", type=Path, help="a tiny model's folder, to be served on CPU")
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--input", type=int, default=256)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fraction", type=float, default=0.35, help="of the GPU's memory, on the GPU")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="roost-answers-") as scratch:
        folder = Path(scratch)
        log = options.out / "answers-server.log"
        if options.cpu:
            model: Path = options.cpu
            server: Any = CpuServer(Path(sys.executable), model, log)
        else:
            model = folder / "model"
            model.mkdir()
            (model / "config.json").write_text(json.dumps(LLAMA_8B))
            write_tokenizer(model, CONTEXT)
            server = GpuServing(options.root.expanduser(), model, log, options.fraction)
            os.environ.update(serving(options.root.expanduser()))
        server.start()
        try:
            result = _measured(options, model, server, folder)
        finally:
            server.stop()
    path = options.out / f"answers-{date.today():%Y-%m-%d}{'-cpu' if options.cpu else ''}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def _measured(options: argparse.Namespace, model: Path, server: Any, folder: Path) -> dict[str, Any]:
    workdir = Workdir(folder / "workdir")
    theirs: list[float] = []
    ours: list[dict[str, float]] = []
    by_bench_serving(options, model, server.port, 1000, folder)  # compiles and captures what is still missing
    for number in range(options.rounds):
        theirs.append(by_bench_serving(options, model, server.port, 2000 + number, folder))
        ours.append(by_answerer(options, model, server, 3000 + number, folder, workdir))
        print(f"round {number}: bench_serving {theirs[-1]:.0f}, answerer {ours[-1]}", flush=True)
    rates = [one["output_tokens_per_second"] for one in ours]
    return {
        "ratio": statistics.median(rates) / statistics.median(theirs),
        "ratios": [mine / other for mine, other in zip(rates, theirs, strict=True)],
        "bench_serving": theirs,
        "answerer": ours,
        "prompts": options.prompts,
        "concurrency": options.concurrency,
        "input": options.input,
        "output": options.output,
        "machine": _machine(),
        "date": f"{date.today():%Y-%m-%d}",
        "command": server.command,
    }


def _machine() -> dict[str, Any]:
    import torch

    def version(name: str) -> str:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as of

        try:
            return of(name)
        except PackageNotFoundError:
            return "unknown"

    return {
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sglang": version("sglang"),
    }


if __name__ == "__main__":
    main()
