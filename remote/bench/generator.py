"""Runs SGLang's own load generator many times in one process, because its imports take longer than a short run.

Runs on the host. `verb.py` calls `run_all`, which starts this module as a program. The program reads a JSON list of
argument lists from stdin. For each run, SGLang's generator appends a JSON line to its `--output-file`, and the program
appends an `Answers` to the file that is its only argument.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from remote.bench.answers import Answers, listening
from remote.shared.errors import HostError

MODULES = ("sglang.benchmark.serving", "sglang.bench_serving")
"""The module's name in SGLang: the first from about 0.5.21 on, the second before that."""
POLL_SECONDS = 0.2
WORDS_KEPT = 600


class Run(NamedTuple):
    """One run: the generator's own result, and the server's answers."""

    result: dict[str, Any]
    answers: Answers


def run_all(runs: list[list[str]], key: str, deadline: float, on_run: Callable[[int], None]) -> list[Run]:
    """Return one `Run` for each argument list, in order; `on_run` is given the number of finished runs.

    `key` is the server's API key; it travels in the generator's environment, never in an argument.

    Raises HostError if the generator is missing, fails or takes longer than `deadline` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
        results, heard, log = (Path(folder) / name for name in ("results.jsonl", "answers.jsonl", "log"))
        results.touch()
        heard.touch()
        lines = json.dumps([[*run, "--output-file", str(results)] for run in runs])
        with log.open("wb") as words:
            process = subprocess.Popen(
                [sys.executable, "-m", "remote.bench.generator", str(heard)],
                stdin=subprocess.PIPE,
                stdout=words,
                stderr=words,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": key},
                start_new_session=True,
            )
        try:
            assert process.stdin is not None
            process.stdin.write(lines.encode())
            process.stdin.close()
            _await(process, results, log, deadline, on_run)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        results_of_runs = [json.loads(line) for line in results.read_text().splitlines()]
        answers = [Answers.model_validate_json(line) for line in heard.read_text().splitlines()]
        return [Run(result, said) for result, said in zip(results_of_runs, answers, strict=True)]


def _await(
    process: subprocess.Popen[bytes], results: Path, log: Path, deadline: float, on_run: Callable[[int], None]
) -> None:
    ends_at, done = time.monotonic() + deadline, 0
    while process.poll() is None:
        if time.monotonic() > ends_at:
            raise HostError(
                f"The measurement did not end within {deadline:.0f} s ({done} runs were done).",
                remedy="Measure fewer profiles or repetitions.",
            )
        time.sleep(POLL_SECONDS)
        finished = results.read_bytes().count(b"\n")
        if finished != done:
            done = finished
            on_run(done)
    if process.returncode:
        words = log.read_text(errors="replace").strip()[-WORDS_KEPT:].splitlines()
        raise HostError(f"SGLang's load generator failed: {words[-1] if words else 'it said nothing'}.")


def module() -> str:
    """Return the load generator of the installed SGLang."""
    for name in MODULES:
        try:
            if importlib.util.find_spec(name) is not None:
                return name
        except ModuleNotFoundError:
            continue
    raise SystemExit("this SGLang has no bench_serving")


def main() -> None:
    """Run the generator once for each argument list on stdin."""
    name, heard = module(), Path(sys.argv[1])
    warnings.simplefilter("ignore")
    for arguments in json.load(sys.stdin):
        sys.argv = [name, *arguments]
        with listening() as answers:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        with heard.open("a") as file:
            file.write(answers.model_dump_json() + "\n")


if __name__ == "__main__":
    main()
