"""The grid, the halving and the verdict of a search, without a server: a backend that answers from a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hosts.errors import UsageError
from hosts.inventory.load import load_inventory
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from hosts.transport.process import Process
from hosts.tune import fragment
from hosts.tune.grid import Setting, applied, collectives, current, with_flags
from hosts.tune.outcome import conclude
from hosts.tune.plan import Plan
from hosts.tune.record import Trial, TuneRecord, load
from hosts.tune.screening import Screening
from remote.messages.bench import BenchRequest, BenchResult, Measurement
from remote.messages.tune import Sample, ScreenRequest, ScreenResult

INVENTORY = """
# the fleet
defaults: {model: /m, gpus: 8, tp: 8}
modes:
  serve: {flags: {disable-custom-all-reduce: true}}   # production
nccl: {NCCL_PROTO: LL, NCCL_DEBUG_FILE: /tmp/x}
hosts:
  # the first box
  gpu1:
    address: 192.0.2.1  # in rack 3
    tune: {NCCL_PROTO: [LL, Simple, Nonsense], NCCL_NTHREADS: [256, 512], disable-custom-all-reduce: [true, false]}
"""
PLAN = Plan(mode="serve", goal="decode", confirm=2)


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return path


@pytest.fixture
def host(inventory: Path) -> Host:
    return load_inventory(inventory).hosts["gpu1"]


class Table(Backend):
    """Answers `screen` by a function of the environment, and counts the calls."""

    def __init__(self, host: Host, answer: Callable[[dict[str, str]], float | str]) -> None:
        super().__init__(host)
        self.answer, self.calls = answer, 0

    def open(self, argv: list[str]) -> Process:
        raise NotImplementedError

    def close(self) -> None:
        return

    def call(self, verb: str, request: Any, result: Any, **_: Any) -> Any:
        assert verb == "screen"
        assert isinstance(request, ScreenRequest)
        self.calls += 1
        answer = self.answer(request.env)
        if isinstance(answer, str):
            return ScreenResult(status="hung", cause=answer, backend="nccl")
        sample = Sample(operation="all_reduce", size_bytes=1, microseconds=[answer] * request.repetitions)
        return ScreenResult(status="ok", backend="nccl", samples=[sample])


def screening(backend: Backend, root: Path, record: TuneRecord) -> Screening:
    from hosts.inventory.servers import server_specs

    return Screening(backend, root, PLAN, server_specs(backend.host, "serve")[0], record, lambda text: None)


def record_of(root: Path, host: Host) -> TuneRecord:
    return load(root, host.name, "serve", "decode", {"grid": [1]}, fresh=False)


def speed(env: dict[str, str]) -> float | str:
    if env.get("NCCL_PROTO") == "Nonsense":
        return "No result within 60 s."
    return {"LL": 50.0, "Simple": 40.0}[env["NCCL_PROTO"]] - (5.0 if env.get("NCCL_NTHREADS") == "512" else 0.0)


def test_the_grid_starts_with_what_the_inventory_has_and_varies_the_rest(host: Host) -> None:
    settings = collectives(host, "serve")
    assert settings[0] == current(host, "serve") == Setting(env={"NCCL_PROTO": "LL"}, flags={FLAG: True})
    assert len(settings) == 1 + 3 * 2
    assert {setting.flags[FLAG] for setting in with_flags(host, settings[:1])} == {True, False}


FLAG = "disable-custom-all-reduce"


def test_a_setting_replaces_the_tuned_variables_and_leaves_the_others(host: Host) -> None:
    changed = applied(host, "serve", Setting(env={"NCCL_NTHREADS": "512"}, flags={FLAG: False}))
    assert changed.nccl == {"NCCL_DEBUG_FILE": "/tmp/x", "NCCL_NTHREADS": "512"}
    assert changed.modes["serve"].flags == {FLAG: False}


def test_screening_keeps_the_fastest_and_skips_what_hangs(host: Host, tmp_path: Path) -> None:
    record = record_of(tmp_path, host)
    best = screening(Table(host, speed), tmp_path, record).best(collectives(host, "serve"))
    assert best[0] == current(host, "serve")
    assert [setting.env for setting in best[1:]] == [
        {"NCCL_PROTO": "Simple", "NCCL_NTHREADS": "512"},
        {"NCCL_PROTO": "Simple", "NCCL_NTHREADS": "256"},
    ]
    hung = [entry for entry in record.entries.values() if entry.screened[0].status == "hung"]
    assert len(hung) == 2


def test_an_interrupted_search_measures_nothing_twice(host: Host, tmp_path: Path) -> None:
    first = Table(host, speed)
    screening(first, tmp_path, record_of(tmp_path, host)).best(collectives(host, "serve"))
    again = Table(host, speed)
    screening(again, tmp_path, record_of(tmp_path, host)).best(collectives(host, "serve"))
    assert first.calls > 0
    assert again.calls == 0


def test_another_grid_or_fresh_starts_over(host: Host, tmp_path: Path) -> None:
    record = record_of(tmp_path, host)
    record.entry(current(host, "serve"))
    record.save(tmp_path)
    assert record_of(tmp_path, host).entries
    assert not load(tmp_path, host.name, "serve", "decode", {"grid": [2]}, fresh=False).entries
    assert not load(tmp_path, host.name, "serve", "decode", {"grid": [1]}, fresh=True).entries


def trial(values: list[float]) -> Trial:
    measurement = Measurement(name="decode", unit="tokens/s", better="higher", values=values)
    result = BenchResult(
        server="main",
        mode="serve",
        taken_at=0,
        seconds=1,
        sglang="0.5.17",
        torch="2.11.0",
        model="/m",
        command=[],
        env={},
        capture="none",
        payload="",
        request=BenchRequest(),
        measurements=[measurement],
    )
    return Trial(status="ok", result=result)


@pytest.mark.parametrize(
    ("challenger", "wins"),
    [([90.0, 90.1, 89.9], True), ([63.6, 63.5, 63.8], False), ([50.0, 50.1, 49.9], False), ([], False)],
)
def test_only_a_server_that_is_really_faster_wins(host: Host, challenger: list[float], wins: bool) -> None:
    now, other = current(host, "serve"), Setting(env={"NCCL_PROTO": "Simple"}, flags={FLAG: True})
    record = TuneRecord(host="gpu1", mode="serve", goal="decode", grid={})
    record.entry(now).trials = [trial([63.5, 63.6, 63.7]), trial([63.6, 63.6, 63.7])]
    record.entry(other).trials = [trial(challenger)] if challenger else [Trial(status="Server 'main' died.")]
    tuned = conclude("gpu1", PLAN, now, record)
    assert tuned.is_current is not wins
    assert tuned.winner == (other if wins else now)
    assert challenger or any("died" in row.note for row in tuned.rows)


def test_the_winner_is_written_with_comments_and_order_kept(inventory: Path) -> None:
    winner = Setting(env={"NCCL_PROTO": "Simple", "NCCL_NTHREADS": "512"}, flags={FLAG: False})
    inventory.chmod(0o640)
    fragment.apply(inventory, fragment.fragment("gpu1", "serve", winner))
    text = inventory.read_text()
    for kept in ("# the fleet", "# production", "# the first box", "# in rack 3"):
        assert kept in text
    assert text.index("defaults") < text.index("modes") < text.index("hosts")
    assert inventory.stat().st_mode & 0o777 == 0o640
    assert current(load_inventory(inventory).hosts["gpu1"], "serve") == winner


def test_nvls_is_never_tuned(inventory: Path) -> None:
    inventory.write_text(INVENTORY.replace("NCCL_NTHREADS:", "NCCL_NVLS_ENABLE:"))
    with pytest.raises(UsageError, match="NCCL_NVLS_ENABLE cannot be tuned"):
        collectives(load_inventory(inventory).hosts["gpu1"], "serve")
