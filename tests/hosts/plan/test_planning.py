"""`inv plan` on real hosts of the backend `local`: its requests, its files and its refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hosts.commands.plan import plan
from hosts.errors import HostError, UsageError
from hosts.fleet import Fleet, fleet_of
from hosts.inventory.kept import Kept
from hosts.inventory.load import load_inventory
from hosts.inventory.select import select
from hosts.plan.plan import load
from hosts.practice.paths import PracticePaths
from tests.manifests import manifest

ROOT = Path(__file__).parents[3]
MODEL = {
    "hidden_size": 128,
    "num_hidden_layers": 6,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_of_two(tmp_path) as made:
        yield made


def fleet_of_two(folder: Path, **of_b: Any) -> Any:
    """Hosts `a` and `b` on this machine, with models of the same shape; `of_b` overrides b's settings."""
    for name in ("a", "b"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(MODEL))
    settings = {
        "connection": "local",
        "python": str(PracticePaths(ROOT).engine_python),
        "workdir": str(folder / "workdir"),
        "layers": [1, 3, 5],
        "min_free": "1MiB",
        "dump_dir": str(folder / "ram"),
        "dump_high_water": "64MiB",
    }
    hosts = {name: {"model": str(folder / name)} for name in ("a", "b")}
    hosts["b"] |= of_b
    (folder / "inventory.yaml").write_text(json.dumps({"defaults": settings, "hosts": hosts}))
    inventory = load_inventory(folder / "inventory.yaml")
    return fleet_of(inventory, select(inventory, None, "all"))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    lengths = np.array([100 + i % 50 for i in range(400)], np.int32)
    np.save(folder / "lengths.npy", lengths)
    tokens, longest = int(lengths.sum()), int(lengths.max())
    counts = manifest(records=400, tokens=tokens, loss_tokens=1, max_tokens=longest, vocab_size=512)
    (folder / "manifest.json").write_text(counts.model_dump_json())
    return folder


def test_a_plan_names_the_model_and_is_written(fleet: Fleet, dataset: Path, tmp_path: Path) -> None:
    planned = plan(fleet, dataset, "first", rate=1000)
    assert planned.fits
    assert planned.plan.identity.boundaries == (1, 3, 5, 6)
    assert (planned.plan.identity.hidden_size, planned.plan.identity.dtype) == (128, "BF16")
    assert [share.context_length for share in planned.plan.shares] == [4096, 4096]
    assert load(Kept(tmp_path).plan("first")) == planned.plan
    assert planned.hours == pytest.approx(planned.plan.shares[0].tokens / 1000 / 3600, rel=0.02)
    with pytest.raises(UsageError, match="has a plan already"):
        plan(fleet, dataset, "first")
    assert plan(fleet, dataset, "first", anew=True).hours is None


def test_speeds_of_the_inventory_are_the_weights(dataset: Path, tmp_path: Path) -> None:
    with fleet_of_two(tmp_path, tokens_per_second=300) as fleet:
        fleet.hosts[0].tokens_per_second = 100
        first, second = plan(fleet, dataset, "run").plan.shares
    assert second.tokens == pytest.approx(3 * first.tokens, rel=0.05)


def test_a_plan_that_does_not_fit_is_not_written(dataset: Path, tmp_path: Path) -> None:
    with fleet_of_two(tmp_path, min_free="100TiB") as fleet:
        planned = plan(fleet, dataset, "run")
    assert not planned.fits
    assert [bool(one.problems) for one in planned.forecasts] == [False, True]
    assert planned.path is None
    assert planned.remedies
    assert not Kept(tmp_path).plan("run").exists()


@pytest.mark.parametrize(
    ("of_b", "words"),
    [
        ({"layers": [1, 2, 3]}, "a and b differ in boundaries"),
        ({"layers": [1, 2, 6]}, "the model on b has 6 blocks"),
        ({"final": "post"}, "a and b differ in final"),
        ({"context_length": 120}, "longer than the 113 tokens that the servers admit"),
    ],
)
def test_hosts_that_cannot_share_a_run_are_refused_by_name(
    dataset: Path, tmp_path: Path, of_b: dict[str, Any], words: str
) -> None:
    with fleet_of_two(tmp_path, **of_b) as fleet, pytest.raises(UsageError, match=words):
        plan(fleet, dataset, "run")


def test_another_model_under_the_same_shape_is_noticed(fleet: Fleet, dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "b" / "config.json").write_text(json.dumps({**MODEL, "rope_theta": 5}))
    with pytest.raises(UsageError, match="do not have the same model"):
        plan(fleet, dataset, "run")


def test_a_host_without_its_model_is_named(fleet: Fleet, dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "b" / "config.json").unlink()
    with pytest.raises(HostError, match=r"b: The inventory's `model` for this host is .* could not be read"):
        plan(fleet, dataset, "run")


def test_lengths_that_do_not_belong_to_the_manifest_are_refused(fleet: Fleet, dataset: Path) -> None:
    np.save(dataset / "lengths.npy", np.array([1, 2], np.int32))
    with pytest.raises(UsageError, match="has 2 records"):
        plan(fleet, dataset, "run")
    (dataset / "lengths.npy").write_bytes(b"not numpy")
    with pytest.raises(UsageError, match="could not be read"):
        plan(fleet, dataset, "run")
