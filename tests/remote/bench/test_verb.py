"""What the load generator is asked, and whether its numbers can be believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remote.bench.cases import cases
from remote.bench.verb import _check_answers, _context_length
from remote.errors import HostError
from remote.messages.bench import BenchRequest
from remote.messages.server import ServerState


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
    _check_answers(wanted, [{"completed": 4}, {"completed": 4}])
    with pytest.raises(HostError, match="answered 7 of 8 requests"):
        _check_answers(wanted, [{"completed": 4}, {"completed": 3}])
