"""Types a whole day of commands, from `inv prepare` to `inv verify`, on one machine with a GPU.

    python -m benchmarks.day --root ~/sglang-gpu --out benchmarks/results --layers 2 --records 220
    python -m benchmarks.day … --servers 8 --tp 1     # one server on each of eight GPUs
    python -m benchmarks.day … --servers 1 --tp 8     # one server over eight GPUs
    python -m benchmarks.day … --tp 8 --tune decode,prefill   # and `inv tune` with that server before it is stopped

The host is this machine (`connection: local`). The model is Kimi-K2.5 with fewer layers (benchmarks/gpu/kimi.py), and
the records have realistic lengths (lognormal, mean 2,353 tokens). Before and after the extraction, the same prompts are
prefilled plainly in the same server at the same concurrency. `inv pull --follow --free` drains during the extraction.

`--practice` tries the same on a CPU: the tiny model, `.engine`, a few short records.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from hosts.inventory.document import text_of
from remote.servers.lifecycle.key import headers
from remote.shared.paths import Workdir

REPOSITORY = Path(__file__).resolve().parents[1]
RUN = "day"
HOST = "box"
MEAN_TOKENS = 2353
SIGMA = 0.75
"""Of the lengths' logarithm."""
IN_FLIGHT = 131_072
STEP_SECONDS = 420.0
TUNE_SECONDS = 3600.0


@dataclass(frozen=True)
class Settings:
    """The settings that differ between a GPU machine and a trial on a CPU."""

    folder: Path
    model: Path
    python: str
    host: dict[str, Any]
    flags: dict[str, Any]
    records: int
    mean: int
    ports: list[int]
    """One for each server."""
    tp: int
    trust: bool


class Day:
    """The commands of one day and their seconds."""

    def __init__(self, settings: Settings, out: Path) -> None:
        self.settings = settings
        self.steps: dict[str, Any] = {}
        self._out = out
        self._inventory = settings.folder / "inventory.yaml"
        self.workdir = Workdir(settings.folder / "roost")
        self.dataset = settings.folder / "dataset"
        self.destination = settings.folder / "pulled"

    def write_inventory(self) -> None:
        given = self.settings
        local = {"python": given.python, "workdir": str(given.folder / "local")}
        host = {"connection": "local", **local, "workdir": str(self.workdir.root), "model": str(given.model)}
        modes = {"extract": {"capture": True, "flags": given.flags}}
        servers = [
            {"name": f"s{number}", "gpus": self._gpus(number), "port": port, "tp": given.tp}
            for number, port in enumerate(given.ports)
        ]
        several = {"servers": servers} if len(servers) > 1 else {"port": given.ports[0]}
        text = text_of({"modes": modes, "local": local, "hosts": {HOST: {**host, **several, **given.host}}})
        self._inventory.write_text(text)

    def _gpus(self, number: int) -> list[int]:
        """The GPUs of a server; none on a CPU."""
        tp = self.settings.tp
        return list(range(number * tp, (number + 1) * tp)) if self.settings.host["gpus"] else []

    def start(self, task: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "invoke", task, *arguments, "--json"]
        environment = {**os.environ, "ROOST_INVENTORY": str(self._inventory)}
        print("$ inv", task, *arguments, flush=True)
        return subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdin=subprocess.DEVNULL, text=True, stdout=-1, stderr=-1
        )

    def end(
        self,
        name: str,
        process: subprocess.Popen[str],
        begun: float,
        *,
        may_fail: bool = False,
        most: float = STEP_SECONDS,
    ) -> dict[str, Any]:
        """Wait for a command's end, and keep its seconds and its output; raise RuntimeError if it failed."""
        said, noise = process.communicate(timeout=most)
        seconds = round(time.time() - begun, 2)
        self.steps[name] = {"seconds": seconds, "code": process.returncode}
        print(f"  {seconds} s, code {process.returncode}: {said[-600:]} {noise[-800:]}", flush=True)
        self.keep()
        if process.returncode and not may_fail:
            raise RuntimeError(f"inv {name} ended with {process.returncode}: {said[-2000:]} {noise[-2000:]}")
        return {"said": said, "begun": begun, "seconds": seconds}

    def type(self, task: str, *arguments: str, may_fail: bool = False) -> dict[str, Any]:
        begun = time.time()
        return self.end(task, self.start(task, *arguments), begun, may_fail=may_fail)

    def keep(self, **more: Any) -> None:
        self.steps |= more
        self._out.write_text(json.dumps(self.steps, indent=1) + "\n")

    def prompts(self) -> list[list[int]]:
        """Return the dataset's token ids, in order."""
        import datasets

        rows = datasets.load_from_disk(str(self.dataset)).with_format(None)
        return [list(tokens) for tokens in rows["input_ids"]]

    def plain(self, prompts: list[list[int]], name: str) -> float:
        """Prefill all prompts plainly at the extraction's concurrency; return the tokens a second."""
        folders = sorted((self.workdir.root / "servers").iterdir())
        keys = [headers(self.workdir.server(folder.name)) for folder in folders]
        addresses = [f"http://127.0.0.1:{port}/generate" for port in self.settings.ports]
        begun = time.monotonic()
        asyncio.run(prefill(prompts, list(zip(addresses, keys, strict=True))))
        seconds = time.monotonic() - begun
        rate = sum(map(len, prompts)) / seconds
        self.keep(**{name: {"seconds": round(seconds, 3), "tokens_per_second": round(rate)}})
        print(f"{name}: {rate:,.0f} tokens/s", flush=True)
        return rate


class InFlight:
    """A limit for the tokens in flight, like the extractor's."""

    def __init__(self, servers: int) -> None:
        self._used = [0] * servers
        self._changed = asyncio.Condition()

    async def take(self, tokens: int) -> int:
        """Wait until the server with the fewest tokens has room for so many; return its number."""
        async with self._changed:
            await self._changed.wait_for(lambda: min(self._used) == 0 or min(self._used) + tokens <= IN_FLIGHT)
            server = self._used.index(min(self._used))
            self._used[server] += tokens
            return server

    async def give(self, tokens: int, server: int) -> None:
        async with self._changed:
            self._used[server] -= tokens
            self._changed.notify_all()


async def prefill(prompts: list[list[int]], servers: list[tuple[str, dict[str, str]]]) -> None:
    """As the extractor sends: a prompt's tokens are given back when it is answered. `servers` are URLs and headers."""
    flying = InFlight(len(servers))

    async def one(session: aiohttp.ClientSession, tokens: list[int], server: int) -> None:
        url, key = servers[server]
        body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}}
        wanted = {"Content-Type": "application/json", **key}
        async with session.post(url, data=orjson.dumps(body), headers=wanted) as answer:
            await answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the server answered {answer.status}")
        await flying.give(len(tokens), server)

    timeout = aiohttp.ClientTimeout(total=STEP_SECONDS)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        tasks = []
        for tokens in prompts:
            server = await flying.take(len(tokens))
            tasks.append(asyncio.create_task(one(session, tokens, server)))
        await asyncio.gather(*tasks)


def write_chats(path: Path, records: int, mean: int) -> None:
    """Write conversations of two turns. About two letters make a token of the random tokenizer."""
    draw = random.Random(11)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    with path.open("w") as lines:
        for number in range(records):
            tokens = min(4 * mean, int(draw.lognormvariate(0, SIGMA) * mean / 2.718281828 ** (SIGMA**2 / 2)))
            count = max(8, tokens // 4)
            words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(count)]
            half = len(words) // 3
            turns = [
                {"role": "user", "content": f"{number} {' '.join(words[:half])}"},
                {"role": "assistant", "content": " ".join(words[half:])},
            ]
            lines.write(json.dumps({"messages": turns}) + "\n")


def extracted(day: Day, begun: float, ended: float) -> dict[str, Any]:
    """Return the figures of the extraction from the run's ledger."""
    paths = day.workdir.run(RUN)
    with sqlite3.connect(f"file:{paths.ledger}?mode=ro", uri=True) as ledger:
        rows = ledger.execute("SELECT finished_at, rows, size_bytes, state, parity FROM records").fetchall()
    finished = sorted(row[0] for row in rows)
    state = json.loads(paths.state.read_text())
    tokens = sum(row[1] for row in rows)
    compared = [json.loads(row[4]) for row in rows if row[4] and row[4] != "{}"]
    size = sum(row[2] for row in rows)
    return {
        "records": len(rows),
        "states": sorted({row[3] for row in rows}),
        "tokens": tokens,
        "gigabytes": round(size / 1e9, 2),
        "command_seconds": round(ended - begun, 2),
        "to_session": round(state["started_at"] - begun, 2),
        "to_first_record": round(finished[0] - begun, 2),
        "first_to_last": round(finished[-1] - finished[0], 2),
        "last_to_end": round(ended - finished[-1], 2),
        "session_tokens_per_second": round(tokens / (finished[-1] - state["started_at"])),
        "command_tokens_per_second": round(tokens / (ended - begun)),
        "backpressure_seconds": state["backpressure_seconds"],
        "finished": [round(at - begun, 2) for at in finished],
        "parity": {
            "compared": len(compared),
            "largest_excess": max((one["excess"] for one in compared), default=None),
            "least_top1": min((one["top1"] for one in compared if one["top1"] is not None), default=None),
        },
    }


def await_run(day: Day, extraction: subprocess.Popen[str]) -> None:
    """Return when the run is at work on the host, or its command has ended."""
    while not day.workdir.run(RUN).state.exists() and extraction.poll() is None:
        time.sleep(0.05)


def await_file(path: Path | None, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while path is not None and not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)


def run(day: Day, *, verify_model: bool, quiet_after: Path | None, goals: list[str]) -> None:
    """Type every command of the day. Failures are kept, and the server is stopped in any case."""
    given = day.settings
    chats = given.folder / "chats.jsonl"
    write_chats(chats, given.records, given.mean)
    trust = ["--trust-remote-code"] if given.trust else []
    day.type("doctor", "--hosts", "all", may_fail=True)
    options = ["--input", str(chats), "--out", str(day.dataset), "--tokenizer", str(given.model), *trust]
    day.type("prepare", *options, "--max-len", str(4 * given.mean), "--too-long", "truncate")
    day.type("deploy", "--hosts", "all")
    day.type("plan", "--hosts", "all", "--dataset", str(day.dataset), "--run", RUN)
    try:
        day.type("serve", "--hosts", "all", "--mode", "extract")
        prompts = day.prompts()
        await_file(quiet_after)
        day.plain(prompts, "plain_warm")
        before = day.plain(prompts, "plain_before")
        begun = time.time()
        extraction = day.start("extract", "--hosts", "all", "--run", RUN)
        await_run(day, extraction)
        pull = day.start("pull", "--hosts", "all", "--run", RUN, "--to", str(day.destination), "--follow", "--free")
        day.end("extract", extraction, begun)
        ended = time.time()
        day.end("pull", pull, begun)
        found = extracted(day, begun, ended)
        after = day.plain(prompts, "plain_after")
        plain = (before + after) / 2
        found["over_plain_in_session"] = round(found["session_tokens_per_second"] / plain, 3)
        found["fixed_seconds"] = round(found["command_seconds"] - found["tokens"] / plain, 2)
        day.keep(extraction=found)
        for goal in goals:
            asked = day.start("tune", "--host", HOST, "--goal", goal, "--mode", "extract")
            told = day.end(f"tune --goal {goal}", asked, time.time(), most=TUNE_SECONDS)
            day.keep(**{f"tune {goal}": json.loads(told["said"])})
    finally:
        day.type("logs", "--hosts", "all", "--run", RUN, "--lines", "30", may_fail=True)
        day.type("stop", "--hosts", "all", may_fail=True)
    day.type("verify", "--folder", str(day.destination))
    if verify_model:
        day.end(
            "verify --model",
            day.start("verify", "--folder", str(day.destination), "--quick", "--model", str(given.model)),
            time.time(),
            may_fail=True,
        )


def on_gpu(root: Path, folder: Path, model: Path, given: argparse.Namespace) -> Settings:
    from benchmarks.gpu.server import FLAGS, serving

    pairs = [flag.removeprefix("--").partition("=") for flag in FLAGS if "graph" not in flag]
    flags: dict[str, Any] = {name: value or True for name, _, value in pairs}
    flags |= {"trust-remote-code": True, "mem-fraction-static": "0.8", "chunked-prefill-size": "8192"}
    flags |= {"max-total-tokens": "262144", "watchdog-timeout": "300"}
    served = serving(root)
    wanted = {name: value for name, value in served.items() if os.environ.get(name) != value}
    host = {
        **{"env": wanted, "gpus": given.tp * given.servers, "tp": given.tp, "context_length": 4 * MEAN_TOKENS + 8},
        **{"ready_timeout": 300, "layers": list(range(given.layers))},
        **{"dump_dir": "/dev/shm/roost-day", "dump_high_water": "24GiB"},
        **{"pinned_memory": "2GiB", "min_free": "2GiB", "parity_rate": 0.05, "in_flight_tokens": IN_FLIGHT},
        **{"tokens_per_second": 10000},
    }
    ports = [30250 + number for number in range(given.servers)]
    return Settings(folder, model, sys.executable, host, flags, given.records, MEAN_TOKENS, ports, given.tp, True)


def on_cpu(folder: Path, records: int, servers: int) -> Settings:
    from hosts.practice.models import tiny_model
    from hosts.practice.paths import PracticePaths
    from hosts.practice.ports import free_port
    from hosts.practice.serving import ENVIRONMENT, FLAGS

    python = str(PracticePaths(REPOSITORY).engine_python)
    flags = {**FLAGS, "disable-cuda-graph": True, "disable-radix-cache": True}
    host = {
        **{"env": dict(ENVIRONMENT), "gpus": 0, "tp": 1, "context_length": 4096, "ready_timeout": 300},
        **{"layers": [1, 3, 5], "dump_dir": "/dev/shm/roost-day-practice", "dump_high_water": "256MiB"},
        **{"pinned_memory": "64MiB", "min_free": "1GiB", "parity_rate": 0.05, "tokens_per_second": 300},
    }
    ports = [free_port() for _ in range(servers)]
    return Settings(folder, tiny_model(REPOSITORY), python, host, flags, records, 120, ports, 1, False)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--root", type=Path, help="where the payload was unpacked (see benchmarks/gpu/README.md)")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--folder", type=Path, default=Path("/tmp/roost-day"), help="gets all data")
    options.add_argument("--model", type=Path, default=Path("/tmp/roost-day-model"), help="gets the model")
    options.add_argument("--records", type=int, default=220)
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--dense", type=int, default=1, help="the first layers, without experts")
    options.add_argument("--servers", type=int, default=1, help="servers side by side, each over --tp GPUs")
    options.add_argument("--tp", type=int, default=1, help="GPUs of a server")
    options.add_argument("--tune", default="", help="goals of `inv tune`, separated by commas, tried at the end")
    options.add_argument("--practice", action="store_true", help="on a CPU, with the practice model")
    options.add_argument("--quiet-after", type=Path, help="measure nothing before this file is there")
    options.add_argument("--verify-model", action="store_true", help="compare a sample with transformers at the end")
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    given.out.mkdir(parents=True, exist_ok=True)
    several = f"{given.servers}xtp{given.tp}-" if given.servers * given.tp > 1 else ""
    out = given.out / f"day-{several}{datetime.date.today().isoformat()}.json"
    if given.practice:
        settings = on_cpu(given.folder, given.records, given.servers)
    else:
        from benchmarks.gpu import kimi

        settings = on_gpu(given.root, given.folder, given.model, given)
        begun = time.monotonic()
        kimi.write(given.model, given.layers, given.dense)
        print(f"the model was made in {time.monotonic() - begun:.0f} s", flush=True)
    day = Day(settings, out)
    day.keep(date=datetime.date.today().isoformat(), layers=given.layers, dense=given.dense)
    day.keep(servers=given.servers, tp=given.tp)
    day.write_inventory()
    goals = [goal for goal in given.tune.split(",") if goal]
    run(day, verify_model=given.verify_model, quiet_after=given.quiet_after, goals=goals)


if __name__ == "__main__":
    main()
