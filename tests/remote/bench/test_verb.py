"""What the load generator is asked, and whether its numbers can be believed."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import pytest

from remote.bench.answers import Answer, Answers
from remote.bench.cases import cases
from remote.bench.generator import run_all
from remote.bench.verb import _check_answers, _context_length, bench
from remote.context import Context
from remote.report import Report
from remote.servers.lifecycle import records
from remote.shared.errors import HostError
from remote.shared.messages.bench import BenchRequest
from remote.shared.messages.server import ServerState
from remote.shared.paths import Workdir
from remote.shared.processes import reference


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Workdir(tmp_path / "work"), Report(io.StringIO()))


def state(model: Path, *flags: str) -> ServerState:
    command = ["python", "-m", "sglang.launch_server", f"--model-path={model}", "--tp-size=8", *flags]
    spec = {"name": "main", "mode": "serve", "model": str(model), "port": 8000}
    return ServerState.model_validate({**spec, "status": "ready", "command": command, "log": "", "spec": spec})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--context-length=2048", "--disable-cuda-graph"], 2048),
        (["--context-length", "2048"], 2048),
        (["--context"], 8192),
        ([], 8192),
    ],
)
def test_the_context_is_the_command_lines_or_the_models(tmp_path: Path, flags: list[str], expected: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 8192}))
    assert _context_length(state(tmp_path, *flags)) == expected


def test_numbers_of_a_server_that_left_requests_unanswered_are_refused() -> None:
    wanted = list(cases(BenchRequest(profiles=["single"]), context_length=4096))
    answer = Answer(prompt_tokens=256, completion_tokens=128, finish="length")
    whole = Answers(by_request={str(number): answer for number in range(4)})
    _check_answers(wanted, [whole, whole])
    with pytest.raises(
        HostError, match=r"was not measured \(single stream\): 3 of 4 requests were answered completely"
    ):
        _check_answers(wanted, [whole, Answers(by_request={str(number): answer for number in range(3)})])


def test_a_server_that_is_not_ready_is_refused_with_its_status(context: Context, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"Server 'main' is not ready: there is no record of it\."):
        bench(BenchRequest(), context)
    for status, said in (("starting", "it is starting"), ("ready", "its process is gone")):
        records.save(context.workdir.server("main"), state(tmp_path).model_copy(update={"status": status}))
        with pytest.raises(HostError, match=rf"Server 'main' is not ready: {said}\."):
            bench(BenchRequest(), context)


def test_a_context_shorter_than_every_length_leaves_nothing_to_measure(context: Context, tmp_path: Path) -> None:
    short = state(tmp_path, "--context-length=512").model_copy(update={"server": reference(os.getpid())})
    records.save(context.workdir.server("main"), short)
    with pytest.raises(HostError, match=r"nothing to measure\. Prefill of 512 tokens .* context holds 512"):
        bench(BenchRequest(profiles=["prefill"]), context)


def test_a_load_generator_that_takes_too_long_is_ended() -> None:
    begun = time.monotonic()
    with pytest.raises(HostError, match=r"did not end within 0 s \(0 runs were done\)"):
        run_all([["--num-prompts", "1"]], "", 0.1, lambda done: None)
    assert time.monotonic() - begun < 10
