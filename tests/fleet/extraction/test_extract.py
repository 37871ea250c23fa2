"""Prepare, plan, extract and status from the laptop's side, over the real `local` backend; servers are stand-ins."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hosts.commands import extract as extraction
from hosts.commands.status import status
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.inventory.kept import Kept
from hosts.inventory.model import Host
from hosts.plan.plan import load
from hosts.transport.backend import Backend
from hosts.transport.push import OnBytes, Pushed, push
from remote.shared import ranges
from remote.shared.messages.extract import Assignment, RunStatus, ShardBatch, ShardsRequest, ShardsResult
from remote.shared.messages.transfer import DeliveredRow
from remote.shared.paths import Workdir
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.manifest import opened_for
from tests.fleet.extraction.conftest import LENGTHS, RUN, Site
from tests.remote.extract.standin_process import until


def finished(fleet: Fleet) -> dict[str, set[int]]:
    """Indices that each host has done."""
    found: dict[str, set[int]] = {host.name: set() for host in fleet.hosts}

    def take(host: Host, value: dict[str, object]) -> None:
        found[host.name] |= {row.index for row in ShardBatch.model_validate(value).rows}

    for outcome in fleet.call(
        "shards",
        ShardsRequest(identity=load(fleet.inventory.kept.plan(RUN)).identity),
        ShardsResult,
        on_item=take,
    ):
        assert outcome.result.rows == len(found[outcome.host.name])
    return found


def test_a_run_over_two_hosts_is_followed_to_its_end(site: Site) -> None:
    site.serve("a", delay=0.01)
    site.serve("b", delay=0.01)
    fleet = site.fleet()
    seen: list[RunStatus] = []
    started = extraction.start(fleet, RUN)
    assert [outcome.ok for outcome in started.outcomes] == [True, True]
    ended = extraction.follow(fleet, RUN, lambda _, told: seen.append(told))
    assert {outcome.result.state.status for outcome in ended} == {"complete"}
    done = finished(fleet)
    assert done["a"] | done["b"] == set(range(len(LENGTHS)))
    assert not done["a"] & done["b"]
    for outcome in status(fleet):
        assert outcome.result.standing.runs[0].state.counts.done == len(done[outcome.host.name])


def test_a_lost_host_s_undelivered_records_go_to_the_others_and_it_is_fenced(site: Site) -> None:
    site.serve("a", delay=0.02)
    slow = site.serve("b", delay=0.5, high_water=50_000)
    fleet = site.fleet()
    first = extraction.start(fleet, RUN)
    until(lambda: len(slow.seen()) > 0, "a request to b")
    second = extraction.start(site.fleet("a"), RUN)
    assert second.given_away == {"b": first.plan.share("b").records}  # type: ignore[union-attr]
    assert (second.plan.epoch, second.plan.lost, second.unfenced) == (2, ["b"], {})
    extraction.follow(fleet, RUN, lambda *_: None)
    assert finished(fleet)["a"] == set(range(len(LENGTHS)))
    told = {outcome.host.name: outcome.result.standing.runs[0].state for outcome in status(fleet)}
    assert (told["b"].epoch, told["b"].status, told["b"].counts.assigned) == (2, "complete", 0)
    assert len(slow.seen()) < first.plan.share("b").records  # type: ignore[union-attr]


def test_a_host_that_is_added_in_mid_run_gets_its_share(site: Site) -> None:
    slow = site.serve("a", delay=0.2, high_water=50_000)
    alone = site.fleet("a")
    first = extraction.start(alone, RUN)
    until(lambda: len(slow.seen()) > 2, "some requests to a")
    assert first.plan.share("b") is None
    site.serve("b")
    both = site.fleet()
    second = extraction.start(both, RUN)
    share = second.plan.share("b")
    assert share is not None
    assert share.records > len(LENGTHS) // 4
    extraction.follow(both, RUN, lambda *_: None)
    done = finished(both)
    assert done["a"] | done["b"] == set(range(len(LENGTHS)))
    assert len(done["b"]) >= share.records
    third = extraction.start(both, RUN)
    assert third.plan.epoch == second.plan.epoch


def test_delivered_records_are_not_assigned_again(site: Site) -> None:
    server = site.serve("a")
    share = load(Kept(site.root).plan(RUN)).share("b")
    assert share is not None
    delivered = [(share.ranges[0][0], share.ranges[0][0] + 5)]
    identity = load(Kept(site.root).plan(RUN)).identity
    with opened_for(Destination(site.root / "there"), identity, len(LENGTHS)) as there:
        there.ledger.record(delivery(index) for index in ranges.indices(delivered))
    assert extraction.delivered_to(site.root / "there", identity) == delivered
    with pytest.raises(UsageError, match="holds the run"):
        extraction.delivered_to(site.root / "there", identity.model_copy(update={"nonce": "0" * 16}))
    extraction.start(site.fleet("a"), RUN, delivered=delivered)
    with pytest.raises(UsageError, match=r"5 records of the run .* were delivered to another folder than the one"):
        extraction.start(site.fleet("a"), RUN, delivered=[])
    extraction.follow(site.fleet("a"), RUN, lambda *_: None)
    assert set(server.seen()) == {str(index) for index in range(len(LENGTHS))} - {
        str(index) for index in ranges.indices(delivered)
    }


def test_quarantined_records_are_named_with_the_command_that_tries_them_again(
    site: Site, clone: Path, tmp_path: Path
) -> None:
    site.serve("a", faults={"3": ["nonfinite"]})
    site.serve("b")

    def typed(task: str, *words: str) -> tuple[int, str]:
        command = [str(clone / ".venv/bin/inv"), task, "--hosts", "all", "--inventory", str(site.inventory), *words]
        ended = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=120, check=False)
        return ended.returncode, " ".join((ended.stdout + ended.stderr).split())

    def said(*words: str) -> str:
        return typed("extract", *words)[1]

    def pulled() -> tuple[int, str]:
        return typed("pull", "--run", RUN, "--to", str(tmp_path / "pulled"))

    retry = f"inv extract --hosts all --run {RUN} --retry-quarantined"
    assert f"`{retry}` tries the quarantined records again" in said()
    code, text = pulled()
    assert code == 1
    assert "1 are missing (3). Every host has done its share, so no host brings the missing records." in text
    assert "a: would be opened again: 1 (1 with" in said("--retry-quarantined", "--dry-run")
    assert finished(site.fleet())["a"] & {3} == set()
    site.servers["a"].set_faults({})
    assert "a: opened again: 1 (1 with" in said("--retry-quarantined", "--records", "3")
    assert 3 in finished(site.fleet())["a"]
    code, text = pulled()
    assert (code, "nothing is missing" in text) == (0, True)


def test_a_completely_delivered_run_leaves_no_records_for_the_remaining_hosts(site: Site) -> None:
    with pytest.raises(UsageError, match="nothing is left to extract"):
        extraction.start(site.fleet("a"), RUN, delivered=[(0, len(LENGTHS))])


def delivery(index: int) -> DeliveredRow:
    where = {"host": "b", "epoch": 1, "disk_bytes": 1, "delivered_at": 0.0}
    return DeliveredRow.model_validate({"index": index, "rows": 8, "size_bytes": 1, "xxh3": "0" * 32, **where})


def test_a_host_without_a_server_does_not_delay_the_other_host(site: Site) -> None:
    site.serve("a")
    fleet = site.fleet()
    extraction.start(fleet, RUN)
    extraction.follow(fleet.narrowed([fleet.hosts[0]]), RUN, lambda *_: None)
    told = {outcome.host.name: outcome.result.standing.runs[0].state for outcome in status(fleet)}
    assert told["a"].status == "complete"
    until(lambda: status(fleet)[1].result.standing.runs[0].state.status == "waiting", "b waiting for its server")
    assert "There is no server 'main' on this host" in status(fleet)[1].result.standing.runs[0].state.cause
    extraction.steer(fleet.narrowed([fleet.hosts[1]]), RUN, "stop")
    extraction.follow(fleet, RUN, lambda *_: None)


def test_changed_settings_reach_the_hosts_as_a_new_epoch(site: Site) -> None:
    site.serve("a")
    site.serve("b")
    extraction.start(site.fleet(), RUN)
    extraction.follow(site.fleet(), RUN, lambda *_: None)
    assert extraction.start(site.fleet(), RUN).plan.epoch == 1
    text = site.inventory.read_text()
    Path(site.inventory).write_text(text.replace("min_free: 1MiB", "min_free: 2MiB\n  in_flight_tokens: 4000"))
    again = extraction.start(site.fleet(), RUN)
    assert again.plan.epoch == 2
    assert all(outcome.ok for outcome in again.outcomes)
    given = Workdir(site.root / "a").run(RUN).assignment(2) / "assignment.json"
    assert Assignment.model_validate_json(given.read_bytes()).in_flight_tokens == 4000
    extraction.follow(site.fleet(), RUN, lambda *_: None)


@pytest.mark.parametrize("reached", [[], ["a"]], ids=["before any host has it", "once one host has it"])
def test_an_extract_interrupted_between_two_epochs_can_be_continued(
    site: Site, monkeypatch: pytest.MonkeyPatch, reached: list[str]
) -> None:
    """The plan is saved before the first host is told, so the next command finds the newer epoch and sends it on."""
    site.serve("a")
    site.serve("b")
    extraction.start(site.fleet(), RUN)
    extraction.follow(site.fleet(), RUN, lambda *_: None)
    text = site.inventory.read_text()
    site.inventory.write_text(text.replace("min_free: 1MiB", "min_free: 2MiB"))

    def interrupted(backend: Backend, folder: Path, there: str, *more: OnBytes, owner: str) -> Pushed:
        if backend.host.name not in reached:
            for name in reached:
                given = Workdir(site.root / name).run(RUN).assignment(2) / "assignment.json"
                until(given.exists, f"the newer epoch on {name}")
            raise KeyboardInterrupt
        return push(backend, folder, there, *more, owner=owner)

    monkeypatch.setattr("hosts.commands.extract.push", interrupted)
    with pytest.raises(KeyboardInterrupt):
        extraction.start(site.fleet(), RUN)
    monkeypatch.undo()
    assert load(site.fleet().inventory.kept.plan(RUN)).epoch == 2
    again = extraction.start(site.fleet(), RUN)
    assert again.plan.epoch == 2
    assert all(outcome.ok for outcome in again.outcomes)
    ended = extraction.follow(site.fleet(), RUN, lambda *_: None)
    assert {(outcome.result.state.status, outcome.result.state.epoch) for outcome in ended} == {("complete", 2)}
    done = finished(site.fleet())
    assert done["a"] | done["b"] == set(range(len(LENGTHS)))
    assert not done["a"] & done["b"]
