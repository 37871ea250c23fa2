"""A laptop that has only a copy of the inventory lists, pulls, verifies and continues a run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.commands import extract as extraction
from hosts.commands import runs as taking
from hosts.commands.plan import plan
from hosts.commands.pull import pull
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.inventory.load import load_inventory
from hosts.plan.plan import Plan, load, save
from remote.shared.messages.transfer import Wish
from tests.fleet.extraction.conftest import LENGTHS, RUN, Site

pytestmark = pytest.mark.processes


@pytest.fixture
def extracted(site: Site) -> Fleet:
    """The first laptop's fleet, after both hosts have finished."""
    for name in ("a", "b"):
        site.serve(name)
    fleet = site.fleet()
    assert all(outcome.ok for outcome in extraction.start(fleet, RUN).outcomes)
    extraction.follow(fleet, RUN, lambda *_: None)
    return fleet


def laptop(site: Site, folder: Path, *names: str) -> Fleet:
    """A laptop that never planned anything."""
    folder.mkdir()
    shutil.copy(site.inventory, folder / "inventory.yaml")
    inventory = load_inventory(folder / "inventory.yaml")
    return Fleet(inventory, [host for name, host in inventory.hosts.items() if not names or name in names])


def plan_on(fleet: Fleet) -> Plan:
    return load(fleet.inventory.kept.plan(RUN))


def test_a_second_laptop_lists_pulls_and_continues_a_run_that_another_laptop_planned(
    site: Site, extracted: Fleet, tmp_path: Path
) -> None:
    fleet = laptop(site, tmp_path / "second")
    (before,) = taking.listed(fleet, taking.held(fleet))
    assert (before.name, before.state, before.records_done, before.hosts) == (RUN, "complete", len(LENGTHS), ["a", "b"])
    assert not before.planned_here
    assert before.planned_by == plan_on(extracted).planned_by != ""
    to = tmp_path / "pulled"
    pulled = pull(fleet, Wish(run=RUN), str(to), lambda _: lambda: None)
    assert (pulled.missing, pulled.manifest and pulled.manifest.identity) == ([], plan_on(extracted).identity)
    assert plan_on(fleet) == plan_on(extracted)
    assert taking.listed(fleet, taking.held(fleet))[0].planned_here
    started = extraction.start(fleet, RUN)
    assert (started.plan.epoch, [outcome.ok for outcome in started.outcomes]) == (1, [True, True])


@pytest.fixture
def no_dataset(prepared: Path) -> Iterator[None]:
    """Where the plan says that the dataset lies there is nothing, until the test is over."""
    dataset, away = prepared / "dataset", prepared / "dataset away"
    dataset.rename(away)
    yield
    away.rename(dataset)


def test_with_the_inventory_alone_a_person_lists_pulls_and_verifies_a_run(
    site: Site, extracted: Fleet, no_dataset: None, tmp_path: Path, clone: Path
) -> None:
    laptop(site, tmp_path / "second")
    to = tmp_path / "second" / "pulled"

    def inv(*words: str) -> str:
        typed = [str(clone / ".venv/bin/inv"), *words, "--inventory", str(tmp_path / "second" / "inventory.yaml")]
        ended = subprocess.run(typed, cwd=clone, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    (listed,) = json.loads(inv("runs", "--hosts", "all", "--json"))["runs"]
    assert (listed["name"], listed["records_done"], listed["planned_here"]) == (RUN, len(LENGTHS), False)
    inv("verify", "--hosts", "all", "--run", RUN)
    assert "nothing is missing" in inv("pull", "--hosts", "all", "--run", RUN, "--to", str(to))
    assert sorted(path.name for path in to.iterdir()) == ["hidden_states", "roost"]
    checked = json.loads(inv("verify", "--folder", str(to), "--json"))
    assert (checked["records"], checked["faults"], checked["complete"]) == (len(LENGTHS), 0, True)
    assert checked["has_dataset"] is False
    shard = next((to / "hidden_states").iterdir())
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(AssertionError, match=shard.name):
        inv("verify", "--folder", str(to))


def test_a_laptop_without_the_dataset_continues_a_run_and_moves_no_records(
    site: Site, extracted: Fleet, tmp_path: Path, prepared: Path
) -> None:
    fleet = laptop(site, tmp_path / "second", "a")
    taken = taking.plan_for(fleet, RUN)
    save(taken.model_copy(update={"dataset": str(tmp_path / "nowhere")}), fleet.inventory.kept.plan(RUN))
    with pytest.raises(UsageError, match=r"The share of b would be given to others, but the dataset .* is not on this"):
        extraction.start(fleet, RUN)
    both = Fleet(fleet.inventory, list(fleet.inventory.hosts.values()))
    assert all(outcome.ok for outcome in extraction.start(both, RUN).outcomes)
    other = tmp_path / "other"
    shutil.copytree(prepared / "dataset", other)
    manifest = other / "manifest.json"
    manifest.write_text(manifest.read_text().replace(taken.identity.dataset, "e" * 32))
    with pytest.raises(UsageError, match=f"holds the dataset {'e' * 32}, but the run '{RUN}' was planned for"):
        extraction.start(fleet, RUN, dataset=other)
    assert extraction.start(fleet, RUN, dataset=prepared / "dataset").plan.epoch == 2


def test_two_laptops_that_replan_independently_are_told_of_each_other(
    site: Site, extracted: Fleet, tmp_path: Path
) -> None:
    second = laptop(site, tmp_path / "second")
    taking.take(second, RUN)
    extraction.start(site.fleet("a"), RUN)
    assert plan_on(extracted).epoch == 2
    with pytest.raises(UsageError, match=r"a was given epoch 2 of the run .* the plan on this laptop is of epoch 1"):
        extraction.start(second, RUN)
    assert plan_on(second).epoch == 1
    assert taking.take(second, RUN).epoch == 2
    apart = plan_on(second).model_copy(update={"lost": ["nobody"]})
    save(apart, second.inventory.kept.plan(RUN))
    with pytest.raises(UsageError, match="a was given a different plan of epoch 2 of the run"):
        extraction.start(second, RUN)


def test_a_run_with_finished_records_is_planned_again_only_by_force_and_keeps_its_history(
    site: Site, extracted: Fleet, prepared: Path
) -> None:
    dataset = prepared / "dataset"
    with pytest.raises(
        UsageError, match=r"has finished records \(.* on a, .* on b\), which would not belong to the newly planned run"
    ):
        plan(extracted, dataset, RUN, anew=True)
    before = plan_on(extracted)
    made = plan(extracted, dataset, RUN, anew=True, force=True).plan
    assert (made.epoch, made.identity.nonce != before.identity.nonce) == (before.epoch + 1, True)
    kept = extracted.inventory.kept.plan(RUN).parent / "plans" / f"{before.identity.nonce}-1.json"
    assert load(kept) == before
    with pytest.raises(UsageError, match=r"a holds the run .* not the run"):
        extraction.start(extracted, RUN)


def test_a_name_that_the_hosts_know_cannot_be_planned_again_by_another_laptop(
    site: Site, extracted: Fleet, tmp_path: Path, prepared: Path
) -> None:
    with pytest.raises(UsageError, match=f"a holds a run '{RUN}' already, planned by .*"):
        plan(laptop(site, tmp_path / "second"), prepared / "dataset", RUN)
