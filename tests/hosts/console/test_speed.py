"""What `inv bench`, `--compare` and `inv tune` print: medians, verdicts with their interval, the piece of inventory."""

from __future__ import annotations

import pytest

from hosts.bench.compare import compare, differences
from hosts.console.bench import show_comparison, show_measurements
from hosts.console.output import Output
from hosts.console.tune import show_tuned, tuned_line
from hosts.fleet import Outcome
from hosts.inventory.model import Host, Mode
from hosts.tune.grid import Setting, current, grid_of
from hosts.tune.outcome import conclude
from hosts.tune.record import Basis, Screened, Trial, TuneRecord
from hosts.tune.search import Plan
from remote.shared.messages.tune import CollectiveChoice, Sample, ScreenResult
from tests.measurements import measured


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow terminal, which a test run may have inherited, wraps the cells."""
    monkeypatch.setenv("COLUMNS", "200")


SLOW, FAST = [63.5, 63.6, 63.7, 63.6], [89.9, 90.0, 90.1, 90.2]


def test_medians_are_shown_with_outliers_and_possible_disturbances(capsys: pytest.CaptureFixture[str]) -> None:
    left_out, disturbed = ["Prefill of 8192 tokens was left out."], ["GPU 0 is also used by pid 77 (3.0 GiB)."]
    taken = measured(SLOW, left_out=left_out, disturbed=disturbed)
    show_measurements(Output(as_json=False), [Outcome(Host(name="gpu1"), taken)])
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1].split() == ["gpu1", "decode", "63.6", "63.5", "63.7", "tokens/s", "4"]
    assert shown.err.splitlines() == [
        "gpu1: Prefill of 8192 tokens was left out.",
        "gpu1: something may have disturbed these numbers: GPU 0 is also used by pid 77 (3.0 GiB).",
    ]


def test_a_comparison_shows_its_verdict_the_interval_and_other_differences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = measured(SLOW), measured(FAST, capture="dormant")
    show_comparison(Output(as_json=False), compare(first, second), differences(first, second))
    shown = capsys.readouterr()
    row = " ".join(shown.out.splitlines()[1].split())
    assert row == "decode 63.6 90.0 tokens/s 1.416 (1.413 to 1.419) faster"
    assert shown.err == "Differs between A and B: capture: none against dormant\n"


def test_a_search_ends_with_a_table_the_winner_and_its_inventory_lines(capsys: pytest.CaptureFixture[str]) -> None:
    grid = {"NCCL_PROTO": ["LL", "Simple", "Nonsense"]}
    host = Host.model_validate(
        {"name": "gpu1", "model": "/m", "modes": {"serve": Mode()}, "nccl": {"NCCL_PROTO": "LL"}, "tune": grid}
    )
    now, winner, refused = (Setting(env={"NCCL_PROTO": value}) for value in ("LL", "Simple", "Nonsense"))
    basis = Basis(grid=grid_of(host), now=current(host, "serve"), model="/m", tp=8, gpus=[])
    record = TuneRecord(host="gpu1", mode="serve", goal="decode", basis=basis)
    chosen = CollectiveChoice(
        transports=["P2P/CUMEM"], link="NVLink", channels=16, algorithms=["AllReduce 8 B: RING LL"]
    )
    timed = [Sample(operation="all_reduce", size_bytes=8, microseconds=[40.0])]
    screened = ScreenResult(status="ok", backend="nccl", samples=timed, chosen=chosen)
    record.baselines = [screened]
    for setting, values in ((now, SLOW), (winner, FAST)):
        record.entry(setting).trials = [Trial(status="ok", result=measured(values))]
    record.entry(winner).screened = [Screened(result=screened, baseline=0)]
    refusal = ScreenResult(status="refused", cause="NCCL refused it.", backend="nccl")
    record.entry(refused).screened = [Screened(result=refusal, baseline=0)]
    tuned = conclude(host, Plan("serve", "decode"), now, record)
    assert tuned_line(tuned).startswith(
        "NCCL_PROTO=Simple is faster for decode: decode: 1.416 (1.413 to 1.419), faster"
    )
    show_tuned(Output(as_json=False), tuned)
    shown = capsys.readouterr()
    rows = [line.split() for line in shown.out.splitlines()]
    assert [row[0] for row in rows if row and row[0].startswith("NCCL_PROTO=")] == [
        "NCCL_PROTO=Simple",
        "NCCL_PROTO=LL",
        "NCCL_PROTO=Nonsense",
    ]
    assert "refused: NCCL refused it." in shown.out
    assert shown.out.endswith("hosts:\n  gpu1:\n    nccl:\n      NCCL_PROTO: Simple\n")
    assert "P2P/CUMEM, over NVLink, 16 channels, a ring in each, AllReduce 8 B: RING LL" in shown.err
