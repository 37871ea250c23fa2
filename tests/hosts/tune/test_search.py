"""The grid, the halving and the verdict of a search, without a server: a backend that answers from a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hosts.commands.tune import planned
from hosts.errors import HostError, UsageError
from hosts.fleet import Fleet
from hosts.inventory.load import load_inventory
from hosts.inventory.model import Host
from hosts.inventory.servers import server_specs
from hosts.transport.backend import Backend
from hosts.transport.process import Process
from hosts.tune import fragment
from hosts.tune.grid import Setting, applied, collectives, current, grid_of, with_flags
from hosts.tune.outcome import conclude
from hosts.tune.record import Basis, Found, Screened, Trial, TuneRecord, load
from hosts.tune.screening import Screening
from hosts.tune.search import Plan, measurements
from remote.shared.messages.facts import GpuFact, GpuFacts
from remote.shared.messages.tune import CollectiveChoice, Sample, ScreenRequest, ScreenResult
from tests.measurements import measured

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


def sample(microseconds: float, repetitions: int = 1) -> Sample:
    return Sample(operation="all_reduce", size_bytes=1, microseconds=[microseconds] * repetitions)


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
        return ScreenResult(status="ok", backend="nccl", samples=[sample(answer, request.repetitions)])


class GpuCount(Table):
    """Answers `facts` with so many GPUs and nothing else."""

    def __init__(self, host: Host, gpus: int) -> None:
        super().__init__(host, lambda env: 1.0)
        self.gpus = gpus

    def call(self, verb: str, request: Any, result: Any, **_: Any) -> Any:
        assert verb == "facts"
        found = [GpuFact(index=index, name="H200", total_bytes=1, used_bytes=0) for index in range(self.gpus)]
        return SimpleNamespace(gpu=GpuFacts(gpus=found))


def screening(backend: Backend, root: Path, record: TuneRecord) -> Screening:
    return Screening(backend, root, PLAN, server_specs(backend.host, "serve")[0], record, lambda text: None)


def record_of(root: Path, host: Host) -> TuneRecord:
    return load(root, host.name, "serve", "decode", basis(host), fresh=False)


def basis(host: Host, **changes: Any) -> Basis:
    whole = Basis(grid=grid_of(host), now=current(host, "serve"), model="/m", tp=8, gpus=list(range(8)))
    return whole.model_copy(update=changes)


def speed(env: dict[str, str]) -> float | str:
    if env.get("NCCL_PROTO") == "Nonsense":
        return "No result within 60 s."
    return {"LL": 50.0, "Simple": 40.0}[env["NCCL_PROTO"]] - (5.0 if env.get("NCCL_NTHREADS") == "512" else 0.0)


def test_the_grid_starts_with_the_inventorys_settings_and_varies_the_others(host: Host) -> None:
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
    hung = [entry for entry in record.entries.values() if entry.screened[0].result.status == "hung"]
    assert len(hung) == 2


def test_the_better_half_goes_on_with_twice_the_repetitions(host: Host, tmp_path: Path) -> None:
    many = host.model_copy(update={"tune": {"NCCL_BUFFSIZE": list(range(1, 17))}, "nccl": {"NCCL_BUFFSIZE": "16"}})
    backend = Table(many, lambda env: float(env["NCCL_BUFFSIZE"]))
    record = record_of_many(tmp_path, many)
    best = screening(backend, tmp_path, record).best(collectives(many, "serve"))
    assert [setting.env["NCCL_BUFFSIZE"] for setting in best] == ["16", "1", "2"]
    repetitions = {
        entry.setting.env["NCCL_BUFFSIZE"]: [len(each.result.samples[0].microseconds) for each in entry.screened]
        for entry in record.entries.values()
    }
    assert repetitions == {
        **{str(number): [3] for number in range(8, 16)},
        **{str(number): [3, 6] for number in range(4, 8)},
        "3": [3, 6, 12],
        **{number: [3, 6, 12, 24] for number in ("1", "2")},
    }
    assert [len(result.samples[0].microseconds) for result in record.baselines] == [3, 3, 6, 12, 24]
    assert backend.calls == measurements(len(collectives(many, "serve")), PLAN.confirm)
    assert record_of_many(tmp_path, many) == record


def test_a_machine_that_slows_down_does_not_change_the_ranking(host: Host, tmp_path: Path) -> None:
    """Each call is slower than the one before; the last of the grid is really the best."""
    many = host.model_copy(update={"tune": {"NCCL_BUFFSIZE": list(range(1, 41))}, "nccl": {"NCCL_BUFFSIZE": "40"}})
    backend = Table(many, lambda env: (90.0 if env["NCCL_BUFFSIZE"] == "39" else 100.0) * 1.01**backend.calls)
    record = record_of_many(tmp_path, many)
    best = screening(backend, tmp_path, record).best(collectives(many, "serve"))
    assert best[1].env["NCCL_BUFFSIZE"] == "39"
    tuned = conclude(many, PLAN, current(many, "serve"), record)
    assert tuned.drift > 0.3


def record_of_many(root: Path, host: Host) -> TuneRecord:
    return load(root, host.name, "serve", "decode", basis(host), fresh=False)


def test_an_interrupted_search_measures_nothing_twice(host: Host, tmp_path: Path) -> None:
    first = Table(host, speed)
    screening(first, tmp_path, record_of(tmp_path, host)).best(collectives(host, "serve"))
    again = Table(host, speed)
    screening(again, tmp_path, record_of(tmp_path, host)).best(collectives(host, "serve"))
    assert first.calls > 0
    assert again.calls == 0


@pytest.mark.parametrize(
    "change", [{"model": "/other"}, {"tp": 4}, {"now": Setting()}, {"grid": {"NCCL_PROTO": ["LL"]}}]
)
def test_a_search_that_starts_over_still_knows_the_original_server(
    host: Host, tmp_path: Path, change: dict[str, object]
) -> None:
    record = record_of(tmp_path, host)
    record.entry(current(host, "serve"))
    record.found = Found(mode="extract")
    record.save(tmp_path)
    assert record_of(tmp_path, host) == record
    changed = load(tmp_path, host.name, "serve", "decode", basis(host, **change), fresh=False)
    afresh = load(tmp_path, host.name, "serve", "decode", basis(host), fresh=True)
    for each in (changed, afresh):
        assert not each.entries
        assert each.found == record.found


def trial(values: list[float]) -> Trial:
    return Trial(status="ok", result=measured(values))


@pytest.mark.parametrize(
    ("challenger", "wins"),
    [
        ([90.0, 90.1, 89.9, 90.0], True),
        ([63.6, 63.5, 63.8, 63.6], False),
        ([50.0, 50.1, 49.9, 50.0], False),
        ([], False),
    ],
)
def test_only_a_server_that_is_really_faster_wins(host: Host, challenger: list[float], wins: bool) -> None:
    now, other = current(host, "serve"), Setting(env={"NCCL_PROTO": "Simple"}, flags={FLAG: True})
    record = TuneRecord(host="gpu1", mode="serve", goal="decode", basis=basis(host))
    record.entry(now).trials = [trial([63.5, 63.6, 63.7]), trial([63.6, 63.6, 63.7])]
    record.entry(other).trials = [trial(challenger)] if challenger else [Trial(status="Server 'main' died.")]
    tuned = conclude(host, PLAN, now, record)
    assert tuned.is_current is not wins
    assert bool(tuned.fragment) is wins
    assert [each.verdict for each in tuned.gain] == (["faster"] if wins else [])
    assert tuned.winner == (other if wins else now)
    assert challenger or any("died" in row.note for row in tuned.rows)


def test_the_winner_is_written_with_comments_and_order_kept(inventory: Path) -> None:
    winner = Setting(env={"NCCL_PROTO": "Simple", "NCCL_NTHREADS": "512"}, flags={FLAG: False})
    inventory.chmod(0o640)
    before = inventory.read_text()
    fragment.apply(inventory, fragment.fragment(load_inventory(inventory).hosts["gpu1"], "serve", winner))
    text = inventory.read_text()
    for line in before.strip().splitlines():
        assert line in text
    assert text.index("defaults") < text.index("modes") < text.index("hosts")
    assert inventory.stat().st_mode & 0o777 == 0o640
    assert current(load_inventory(inventory).hosts["gpu1"], "serve") == winner


@pytest.mark.parametrize("where", ["env", "nccl", "mode"])
def test_the_winner_counts_wherever_the_inventory_had_the_variable(inventory: Path, where: str) -> None:
    own = {"env": "env: {NCCL_PROTO: LL}", "nccl": "nccl: {NCCL_PROTO: LL}", "mode": "port: 8000"}[where]
    mode = ", env: {NCCL_PROTO: LL}" if where == "mode" else ""
    inventory.write_text(
        "defaults: {model: /m}\n"
        f"modes: {{serve: {{flags: {{trust-remote-code: true}}{mode}}}}}\n"
        f"hosts:\n  gpu1:\n    {own}\n    tune: {{NCCL_PROTO: [LL, Simple]}}\n"
    )
    host = load_inventory(inventory).hosts["gpu1"]
    winner = Setting(env={"NCCL_PROTO": "Simple"})
    assert current(host, "serve") == Setting(env={"NCCL_PROTO": "LL"})
    fragment.apply(inventory, fragment.fragment(host, "serve", winner))
    written = load_inventory(inventory).hosts["gpu1"]
    assert server_specs(written, "serve")[0].env["NCCL_PROTO"] == "Simple"
    assert server_specs(applied(host, "serve", winner), "serve")[0].env["NCCL_PROTO"] == "Simple"


def test_lists_stay_indented_as_the_file_has_them(inventory: Path) -> None:
    text = "hosts:\n  gpu1:\n    layers:\n    - 3\n    - 31\n    tp: 8\n    modes: {serve: {}}\n"
    inventory.write_text(text)
    host = load_inventory(inventory).hosts["gpu1"]
    fragment.apply(inventory, fragment.fragment(host, "serve", Setting(env={"NCCL_PROTO": "LL"})))
    assert inventory.read_text() == text + "    nccl:\n      NCCL_PROTO: LL\n"


def test_collectives_that_fail_under_the_current_setting_end_the_search(host: Host, tmp_path: Path) -> None:
    record = record_of(tmp_path, host)
    backend = Table(host, lambda env: "No result within 60 s.")
    with pytest.raises(HostError, match=r"do not run under the current setting .* No result within 60 s\."):
        screening(backend, tmp_path, record).best(collectives(host, "serve"))
    assert backend.calls == 1


def test_a_variable_that_nccl_ignores_is_reported_with_its_setting(host: Host) -> None:
    now, other = current(host, "serve"), Setting(env={"NCCL_NTHREADS": "7"}, flags={FLAG: True})
    record = TuneRecord(host="gpu1", mode="serve", goal="decode", basis=basis(host))
    ignored = CollectiveChoice(warnings=["Invalid NCCL_NTHREADS 7 (must be a multiple of 32)"])
    timed = ScreenResult(status="ok", backend="nccl", samples=[sample(40.0)])
    record.baselines = [timed]
    record.entry(other).screened = [Screened(result=timed.model_copy(update={"chosen": ignored}), baseline=0)]
    notes = {row.setting.key: row.note for row in conclude(host, PLAN, now, record).rows}
    assert notes == {now.key: "", other.key: "NCCL says: Invalid NCCL_NTHREADS 7 (must be a multiple of 32)"}


def test_a_dry_run_says_stages_and_minutes_and_refuses_a_host_without_its_gpus(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_inventory(inventory)
    monkeypatch.setattr("hosts.fleet.new_backend", lambda host: GpuCount(host, 8))
    search = planned(Fleet(loaded, [loaded.hosts["gpu1"]]), PLAN)[0].result
    assert (search.settings, search.screenings, search.servers) == (7, 6 + 1 + 3 + 1 + 2 + 1, 3 * 2 + 1)
    monkeypatch.setattr("hosts.fleet.new_backend", lambda host: GpuCount(host, 2))
    error = planned(Fleet(loaded, [loaded.hosts["gpu1"]]), PLAN)[0].error
    assert error is not None
    assert "GPU 2 is missing: this host shows 2 of the 8 GPUs" in error.message


def test_nvls_is_never_tuned(inventory: Path) -> None:
    inventory.write_text(INVENTORY.replace("NCCL_NTHREADS:", "NCCL_NVLS_ENABLE:"))
    with pytest.raises(UsageError, match="NCCL_NVLS_ENABLE cannot be tuned"):
        collectives(load_inventory(inventory).hosts["gpu1"], "serve")
