"""nvidia-smi's answer as GPU conditions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from remote.bench.cases import cases, left_out
from remote.bench.condition import conditions, parse, slowed, strangers
from remote.servers.probing.gpu import Gpu
from remote.shared.messages.bench import BenchRequest
from remote.shared.messages.server import ProcessRef, ServerState
from remote.shared.processes import reference


def test_a_slowed_down_gpu_is_named_with_the_reason_and_an_idle_gpu_is_not() -> None:
    idle, hot = parse(
        [
            ["0", "NVIDIA H200", "345", "3201", "31", "0x0000000000000001", "4"],
            ["1", "NVIDIA H200", "1200", "3201", "88", "0x0000000000000024", "120000"],
        ]
    )
    assert (idle.sm_mhz, idle.celsius, idle.throttled) == (345, 31, "")
    assert hot.throttled == "software power cap, software thermal slowdown"
    assert hot.memory_used_bytes == 120000 << 20


def test_values_that_the_driver_does_not_know_stay_unset() -> None:
    (gpu,) = parse([["0", "GRID A100", "[N/A]", "[N/A]", "[N/A]", "[N/A]", "10"]])
    assert (gpu.sm_mhz, gpu.celsius, gpu.throttled) == (None, None, "")


def test_an_older_driver_is_asked_by_its_own_name_of_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def smi(query: str) -> list[list[str]] | None:
        return [["0", "H200", "345", "3201", "31", "0x8", "4"]] if "clocks_throttle_reasons.active" in query else None

    monkeypatch.setattr("remote.bench.condition.smi", smi)
    assert slowed(conditions()) == ["GPU 0 was slowed down: hardware slowdown."]
    monkeypatch.setattr("remote.bench.condition.smi", lambda query: None)
    assert conditions() == []


def test_prefill_lengths_beyond_the_context_are_left_out_and_named() -> None:
    request = BenchRequest(profiles=["prefill"], prefill_lengths=[512, 4095, 8192])
    assert [case.prompt_tokens for case in cases(request, context_length=4096)] == [512]
    assert [line.split(" tokens")[0] for line in left_out(request, context_length=4096)] == [
        "Prefill of 4095",
        "Prefill of 8192",
    ]
    assert left_out(BenchRequest(profiles=["single"]), context_length=16) == []


@pytest.fixture
def server() -> Iterator[ProcessRef]:
    """A process that lives as long as the test."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield reference(process.pid)
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("seen", "told"),
    [(True, ["GPU 0 is also used by pid 77 (3.0 GiB)."]), (False, [])],
    ids=["by its pid", "by a pid of the outer host"],
)
def test_a_foreign_process_on_the_servers_own_gpu_is_named(
    monkeypatch: pytest.MonkeyPatch, server: ProcessRef, seen: bool, told: list[str]
) -> None:
    ours, other = {server.pid if seen else 2**22 + 1: 1 << 30, 77: 3 << 30}, {78: 1 << 30}
    shown = [Gpu(0, "NVIDIA H200", 1 << 37, 0, ours), Gpu(1, "NVIDIA H200", 1 << 37, 0, other)]
    monkeypatch.setattr("remote.bench.condition.gpus", lambda: shown)
    spec = {"name": "main", "mode": "serve", "model": "/m", "port": 8000}
    state = ServerState.model_validate(
        {**spec, "status": "ready", "command": [], "log": "", "spec": spec, "server": server}
    )
    assert strangers(state) == told
