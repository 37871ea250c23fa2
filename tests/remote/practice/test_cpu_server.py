"""The engine's shims: unmodified SGLang serves MLA and mixture-of-experts models on this CPU; `bench` measures it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from hosts.practice.serving import CONTEXT_LENGTH, CpuServer
from remote.bench import verb
from remote.context import Context
from remote.report import Report
from remote.servers.lifecycle import key, records
from remote.shared.errors import HostError
from remote.shared.messages.bench import BenchRequest, GpuCondition
from remote.shared.messages.server import ServerState
from remote.shared.paths import Workdir
from remote.shared.processes import session_leader

pytestmark = pytest.mark.engine


def ready(server: CpuServer, model: Path) -> ServerState:
    """The record that `serve` would have written of it."""
    common = {"name": "main", "mode": "serve", "model": str(model), "port": server.port}
    return ServerState.model_validate(
        {
            **common,
            "status": "ready",
            "command": server.command,
            "log": str(server.log),
            "spec": common,
            "sglang": "0.5.23",
            "server": session_leader(server.pid),
        }
    )


@pytest.fixture
def visitors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who comes to the GPU and leaves again during a measurement, and a GPU that is hot meanwhile."""

    def moments(*quiet_then: object) -> Iterator[object]:
        yield from quiet_then
        while True:
            yield []

    strangers = moments([], [], ["GPU 0 is also used by pid 77 (3.0 GiB)."])
    hot = GpuCondition(index=0, name="H200", throttled="software thermal slowdown")
    conditions = moments([], [], [hot])
    monkeypatch.setattr(verb, "strangers", lambda state: next(strangers))
    monkeypatch.setattr(verb, "conditions", lambda: next(conditions))


@pytest.mark.usefixtures("visitors")
def test_a_ready_server_is_measured_by_sglangs_own_load_generator(
    cpu_server: Callable[..., CpuServer], tiny_model_path: Path, tmp_path: Path
) -> None:
    said = io.StringIO()
    context = Context(Workdir(tmp_path), Report(said))
    records.save(context.workdir.server("main"), ready(cpu_server(), tiny_model_path))
    key.issue(context.workdir.server("main"), {}, closes_admin=False)  # this server asks nobody for one
    request = BenchRequest(
        profiles=["single", "prefill"], repetitions=2, prompt_tokens=16, output_tokens=4, prefill_lengths=[16, 8192]
    )
    result = verb.bench(request, context)
    assert [(each.name, each.unit, each.better, len(each.values)) for each in result.measurements] == [
        ("decode tokens/s, single stream", "tokens/s", "higher", 2),
        ("time to first token, single stream", "ms", "lower", 2),
        ("prefill tokens/s, prompts of 16", "tokens/s", "higher", 2),
    ]
    assert all(value > 0 for each in result.measurements for value in each.values)
    assert result.left_out == [f"Prefill of 8192 tokens was left out: the server's context holds {CONTEXT_LENGTH}."]
    assert result.disturbed == [
        "GPU 0 is also used by pid 77 (3.0 GiB).",
        "GPU 0 was slowed down: software thermal slowdown.",
    ]
    assert (result.sglang, result.torch, result.capture) == ("0.5.23", torch.__version__, "none")
    assert result.request == request
    assert [(each.name, each.requests, each.prompt_tokens, each.output_tokens) for each in result.sent] == [
        ("single stream", 8, 16, 4),
        ("prompts of 16", 16, 16, 1),
    ]
    assert [(each.name, each.prompt_tokens) for each in result.sent][1:] == [("prompts of 16", 16)]
    assert json.loads(said.getvalue().splitlines()[-1])["text"] == "repetition 2 of 2"


def test_requests_that_the_server_refuses_are_no_measurement(
    cpu_server: Callable[..., CpuServer], tiny_model_path: Path, tmp_path: Path
) -> None:
    """SGLang answers them with HTTP 200, and its load generator counts them as completed."""
    context = Context(Workdir(tmp_path), Report(io.StringIO()))
    records.save(context.workdir.server("main"), ready(cpu_server(), tiny_model_path))
    key.issue(context.workdir.server("main"), {}, closes_admin=False)
    request = BenchRequest(profiles=["single"], repetitions=1, prompt_tokens=CONTEXT_LENGTH + 100, output_tokens=4)
    said = rf"single stream.*0 of 4 requests were answered completely; the server said: .*{CONTEXT_LENGTH + 100} tokens"
    with pytest.raises(HostError, match=said):
        verb.bench(request, context)


def test_a_served_models_logprobs_are_those_of_transformers(
    tiny_model_path: Path, cpu_server: Callable[..., CpuServer]
) -> None:
    """Of the other families `tests/remote/capture/test_families.py` says so, state by state."""
    ids = [(7 * i) % 256 for i in range(48)]
    answer = cpu_server().post(
        "/generate",
        {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
        },
    )
    served = torch.tensor([row[0] for row in answer["meta_info"]["input_token_logprobs"][1:]])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float32)(torch.tensor([ids])).logits[
            0
        ]
    expected = logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert torch.allclose(served, expected, rtol=1e-4, atol=1e-4)
