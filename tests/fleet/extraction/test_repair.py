"""A damaged shard, on a host or at the destination: exactly that record is extracted and pulled again."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from hosts.commands import extract as extraction
from hosts.commands.pull import Pulled, pull
from hosts.commands.repair import repair_folder, repair_run
from hosts.commands.verify import verify_folder, verify_run
from hosts.fleet import Fleet
from hosts.inventory.kept import Kept
from hosts.plan.plan import Plan, load
from remote.shared import ranges
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.transfer import Wish
from remote.shared.messages.verify import VerifyRequest, VerifyResult
from remote.shared.paths import Workdir, shard_name
from remote.shared.transfer.ledger import DestinationLedger
from tests.fleet.extraction.conftest import RUN, Site


def damage(shard: Path) -> None:
    """Change one byte of the states."""
    content = bytearray(shard.read_bytes())
    content[-5] ^= 0x40
    os.chmod(shard, 0o600)
    shard.write_bytes(content)


def extracted(fleet: Fleet) -> None:
    assert all(outcome.ok for outcome in extraction.start(fleet, RUN).outcomes)
    ended = extraction.follow(fleet, RUN, lambda *_: None)
    assert {outcome.result.state.status for outcome in ended} == {"complete"}


def pulled(fleet: Fleet, to: Path, free: bool = False) -> Pulled:
    return pull(fleet, Wish(run=RUN, free=free), str(to), lambda _: lambda: None)


def verified(fleet: Fleet, to: Path) -> VerifyResult:
    return verify_folder(fleet.local, VerifyRequest(folder=str(to)), lambda *_: None, lambda *_: None)


def plan_of(site: Site) -> Plan:
    return load(Kept(site.root).plan(RUN))


def first_of(site: Site, host: str) -> int:
    share = plan_of(site).share(host)
    assert share is not None
    return share.ranges[0][0]


def asked_again(site: Site) -> Ranges:
    """Records that a server was sent more than once in its present life."""
    twice = [int(index) for server in site.servers.values() for index, count in server.seen().items() if count > 1]
    return ranges.from_indices(twice)


def test_only_the_shard_that_was_damaged_on_its_host_is_extracted_again(site: Site) -> None:
    site.serve("a")
    site.serve("b")
    fleet = site.fleet()
    extracted(fleet)
    wrong = first_of(site, "b")
    damage(Workdir(site.root / "b").run(RUN).shard(wrong))
    found = verify_run(fleet, VerifyRequest(run=plan_of(site).identity), lambda *_: None, lambda *_: None)
    assert {one.host.name: one.result.requeue for one in found} == {"a": [], "b": [(wrong, wrong + 1)]}
    queued = repair_run(fleet, plan_of(site), found, dry_run=True)
    assert [(one.host, one.records, one.error) for one in queued] == [("b", [(wrong, wrong + 1)], None)]
    assert Workdir(site.root / "b").run(RUN).shard(wrong).exists()
    repair_run(fleet, plan_of(site), found, dry_run=False)
    extracted(fleet)
    assert asked_again(site) == [(wrong, wrong + 1)]
    again = verify_run(fleet, VerifyRequest(run=plan_of(site).identity), lambda *_: None, lambda *_: None)
    assert all(one.result.complete for one in again)


def test_a_shard_damaged_at_the_destination_is_extracted_again_if_its_host_had_freed_it(site: Site) -> None:
    site.serve("a")
    site.serve("b")
    fleet, to = site.fleet(), site.root / "there"
    extracted(fleet)
    assert not pulled(fleet, to, free=True).missing
    wrong = first_of(site, "a") + 2
    damage(to / "hidden_states" / shard_name(wrong))
    found = verified(fleet, to)
    assert found.requeue == [(wrong, wrong + 1)]
    queued = repair_folder(fleet, plan_of(site), fleet.local, str(to), found.requeue, dry_run=True)
    assert [(one.host, one.records) for one in queued] == [("a", [(wrong, wrong + 1)])]
    assert verified(fleet, to).requeue == [(wrong, wrong + 1)]
    repair_folder(fleet, plan_of(site), fleet.local, str(to), found.requeue, dry_run=False)
    extracted(fleet)
    assert asked_again(site) == [(wrong, wrong + 1)]
    brought = pulled(fleet, to)
    assert sum(one.result.delivered for one in brought.outcomes) == 1
    assert verified(fleet, to).complete


def test_a_damaged_record_of_a_lost_host_is_given_to_another(site: Site) -> None:
    site.serve("a")
    site.serve("b")
    to, lost = site.root / "there", first_of(site, "b")
    extracted(site.fleet())
    pulled(site.fleet(), to)
    with DestinationLedger(to / "roost" / "ledger.sqlite") as ledger:
        ledger.forget([first_of(site, "a")])
    fleet = site.fleet("a")
    extraction.start(fleet, RUN, delivered=extraction.delivered_to(to, plan_of(site).identity))
    extraction.follow(fleet, RUN, lambda *_: None)
    pulled(fleet, to)
    assert plan_of(site).lost == ["b"]
    damage(to / "hidden_states" / shard_name(lost))
    repair_folder(fleet, plan_of(site), fleet.local, str(to), verified(fleet, to).requeue, dry_run=False)
    assert plan_of(site).epoch == 3
    extracted(fleet)
    pulled(fleet, to)
    assert verified(fleet, to).complete


def test_a_dry_run_says_what_would_be_done_and_does_nothing(site: Site, clone: Path) -> None:
    site.serve("a")
    site.serve("b")
    inv = [str(clone / ".venv/bin/inv"), "extract", "--hosts", "all", "--run", RUN, "--inventory", str(site.inventory)]
    said = subprocess.run([*inv, "--dry-run"], cwd=clone, capture_output=True, text=True, timeout=120, check=True)
    share = plan_of(site).share("a")
    assert share is not None
    assert f"a: would start on epoch 1: {share.records:,} records" in said.stdout
    assert not Workdir(site.root / "a").runs.exists()
    assert not (Kept(site.root).plan(RUN).parent / "assignments").exists()
    lost = subprocess.run(
        [*inv[:3], "a", *inv[4:], "--dry-run", "--json"],
        cwd=clone,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(lost.stdout)["hosts"]["a"]["ok"]
    assert plan_of(site).epoch == 1
