"""Run-time parity and norm bands find planted faults that no other check finds, and name them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from remote.extract import canaries
from remote.extract.parity import not_last, sample
from remote.parity.bands import LEARN
from remote.shared.errors import HostError
from remote.shared.messages.extract import RunRequest
from remote.work.ledger import Ledger
from remote.work.verbs import status
from tests.remote.extract.conftest import RUN, Host


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a head for the stand-in's states."""
    folder = tmp_path / "model"
    folder.mkdir()
    rng = np.random.default_rng(1)
    head = {
        "model.norm.weight": rng.uniform(0.5, 1.5, 64).astype(np.float32),
        "lm_head.weight": rng.standard_normal((1000, 64)).astype(np.float32),
    }
    save_file(head, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"rms_norm_eps": 1e-6}))
    return folder


def parities(host: Host) -> dict[int, dict[str, float]]:
    with Ledger(host.paths.ledger) as ledger:
        found = ledger._db.execute("SELECT idx, parity FROM records WHERE parity IS NOT NULL")
        return {index: json.loads(parity) for index, parity in found}


def test_every_sampled_record_is_compared_row_by_row_and_the_numbers_are_kept(host: Host, model: Path) -> None:
    host.serve(model=str(model))
    host.assign([16, 1, 300, 40], parity_rate=1.0)
    state = host.extract()
    assert (state.counts.done, state.parity_checked) == (4, 4)
    assert state.parity_excess <= 1
    assert {index: parity["rows"] for index, parity in parities(host).items()} == {0: 16, 1: 1, 2: 300, 3: 40}


def test_no_compared_record_is_among_the_last_and_none_is_lost() -> None:
    order = not_last([*range(0, 40, 2), 3, 5], lambda position: position in (4, 36, 38, 5))
    assert order[:3] == [5, 36, 38]
    assert sorted(order) == sorted([*range(0, 40, 2), 3, 5])
    assert order[3:] == [position for position in [*range(0, 40, 2), 3] if position not in (36, 38)]


@pytest.mark.parametrize("fault", ["shift", "foreign", "normed"])
def test_another_records_final_slot_is_found_and_the_shard_is_removed(host: Host, model: Path, fault: str) -> None:
    host.serve(model=str(model), faults={"2": [fault]})
    host.assign([16, 30, 300, 40], parity_rate=1.0)
    assert host.extract().counts.quarantined == 1
    (cause,) = host.causes()
    assert "of the final slot gives a log-probability" in cause
    assert not host.paths.shard(2).exists()


def test_a_fault_outside_the_sample_is_not_found(host: Host, model: Path) -> None:
    host.serve(model=str(model), faults={"2": ["shift"]})
    host.assign([16, 30, 300, 40], parity_rate=0.0)
    assert host.extract().counts.quarantined == 0


def test_the_sample_has_the_asked_size_and_is_the_same_everywhere() -> None:
    chosen = sample(range(100_000), 0.01)
    assert 850 < len(chosen) < 1150
    assert chosen <= sample(range(100_000), 0.05)
    assert sample(range(1000), 0.0) == frozenset()
    assert sample(range(1000), 1.0) == frozenset(range(1000))


def test_a_small_run_compares_eight_records_or_all() -> None:
    for indices in (range(5), range(40), range(7000, 7300)):
        chosen = sample(indices, 0.001)
        assert len(chosen) == min(8, len(indices))
        assert chosen == sample(reversed(indices), 0.0001) <= set(indices)


def test_a_small_run_says_how_many_records_were_compared(host: Host, model: Path) -> None:
    host.serve(model=str(model))
    host.assign([16, 5000, *[20] * 12], parity_rate=0.001)  # no server takes the second one
    state = host.extract()
    told = status(RunRequest(run=RUN), host.context)
    assert (state.counts.done, state.counts.quarantined) == (13, 1)
    assert state.parity_checked == told.parity_checked == len(parities(host)) == 8
    host.extract()
    assert status(RunRequest(run=RUN), host.context).parity_checked == 8


def test_a_model_without_a_readable_head_ends_the_run_with_that_cause(host: Host, model: Path) -> None:
    (model / "model.safetensors").unlink()
    host.serve(model="standin")
    host.assign([16], parity_rate=1.0)
    with pytest.raises(HostError, match="The head of the model in standin cannot be read"):
        host.extract()


def test_a_record_outside_the_norm_band_is_kept_and_flagged_even_after_a_restart(host: Host) -> None:
    server = host.serve(faults={"50": ["loud"]})
    host.assign([32] * (LEARN + 8))
    host.extract()
    assert server.seen()
    host.assign([32] * (LEARN + 20), epoch=2)
    state = host.extract()
    assert (state.counts.quarantined, state.flagged) == (0, 1)
    with Ledger(host.paths.ledger) as ledger:
        assert ledger.flagged() == 1
        ((index, flag),) = ledger._db.execute("SELECT idx, flag FROM records WHERE flag IS NOT NULL").fetchall()
    assert index == 50
    assert "norm at boundary 1 is" in flag


@pytest.fixture
def eager_canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canaries, "FIRST_SECONDS", 0.0)


@pytest.mark.usefixtures("eager_canaries")
def test_a_busy_server_is_sent_the_canary_again_and_its_files_are_gone_afterwards(host: Host) -> None:
    host.serve(delay=0.05)
    host.assign([16] * 40, in_flight_tokens=64)
    state = host.extract()
    assert (state.counts.done, state.canaries_passed) == (40, 1)
    assert host.dumps() == []


@pytest.mark.usefixtures("eager_canaries")
def test_a_canary_that_is_wrong_under_load_ends_the_run(host: Host) -> None:
    host.serve(delay=0.05, faults={"None": ["shift"]})
    host.assign([16] * 40, in_flight_tokens=64)
    with pytest.raises(HostError, match=r"Under load, .* captured a canary .* slot 2 should be boundary 6"):
        host.extract()
    assert host.dumps() == []
