"""A following laptop moves open records from the slowest host to a host that is done; each record is extracted once."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hosts.commands import extract as extraction
from hosts.commands.attending import attended
from hosts.commands.moves import Mover, Step, moved, plan_as_moved
from hosts.commands.status import status
from hosts.errors import HostError, RoostError
from hosts.fleet import Fleet
from hosts.inventory.model import Host
from hosts.plan.moving import Move
from remote.shared import ranges
from remote.shared.messages.lease import LeaseRequest, LeaseResult
from tests.fleet.extraction.conftest import LENGTHS, RUN, Site
from tests.fleet.extraction.test_attached import inv
from tests.fleet.extraction.test_extract import finished
from tests.remote.extract.standin_process import until

EVERY = set(range(len(LENGTHS)))


class Watched(Mover):
    """A mover whose steps are kept."""

    def __init__(self, fleet: Fleet) -> None:
        self.steps: list[Step] = []
        self.errors: list[RoostError] = []
        super().__init__(fleet, extraction.plan_of(fleet, RUN).identity, self._keep)

    def _keep(self, _: Host, told: Step | RoostError) -> None:
        if isinstance(told, Step):
            self.steps.append(told)
        else:
            self.errors.append(told)


def _followed(fleet: Fleet) -> Watched:
    mover = Watched(fleet)
    with attended(mover) as attendant:
        ended = extraction.follow(fleet, RUN, lambda *_: None, attendant)
    assert {outcome.result.word for outcome in ended} == {"complete"}
    return mover


def _made_once(site: Site) -> None:
    """Every record was asked for once, of one host."""
    seen = {name: {int(index) for index in server.seen()} for name, server in site.servers.items()}
    assert seen["a"] | seen["b"] == EVERY
    assert not seen["a"] & seen["b"]
    done = finished(site.fleet())
    assert (done["a"], done["b"]) == (seen["a"], seen["b"])


def test_a_host_that_is_done_gets_records_of_the_slow_one(site: Site) -> None:
    site.serve("a", delay=0.01)
    site.serve("b", delay=0.8, high_water=30_000)
    fleet = site.fleet()
    share = extraction.start(fleet, RUN).plan.share("b")
    mover = _followed(fleet)
    assert share is not None
    assert {(step.giver, step.taker) for step in mover.steps} == {("b", "a")}
    assert sum(step.records for step in mover.steps) > share.records / 4
    assert mover.errors == []
    _made_once(site)


def _begun_with_a_slow_host(site: Site, delay: float) -> Fleet:
    """Start the run on both hosts; return once b, which is slow, was sent a record."""
    site.serve("a")
    slow = site.serve("b", delay=delay, high_water=30_000)
    fleet = site.fleet()
    extraction.start(fleet, RUN)
    until(lambda: len(slow.seen()) > 0, "a request to b")
    return fleet


def _lease(fleet: Fleet, giver: str, taker: str, tokens: int) -> int:
    """Records that a host gives away and that nobody hands over."""
    (host,) = [host for host in fleet.hosts if host.name == giver]
    plan = extraction.plan_of(fleet, RUN)
    request = LeaseRequest(identity=plan.identity, epoch=plan.epoch, holder=taker, tokens=tokens)
    return fleet.backend(host).call("lease", request, LeaseResult, on_item=lambda _: None).leases


def test_what_a_laptop_gave_and_did_not_hand_over_is_handed_over_by_the_next_one(site: Site) -> None:
    fleet = _begun_with_a_slow_host(site, delay=0.5)
    assert _lease(fleet, "b", "a", 100)
    _followed(fleet)
    _made_once(site)


def test_a_detached_extract_hands_over_what_an_interrupted_command_left_between_two_hosts(site: Site) -> None:
    fleet = _begun_with_a_slow_host(site, delay=0.2)
    assert _lease(fleet, "b", "a", 300)
    extraction.follow(fleet, RUN, lambda *_: None)
    done = finished(fleet)
    left = EVERY - done["a"] - done["b"]
    assert left
    assert _between(fleet) == {"a": {}, "b": {RUN: {"a": len(left)}}}
    started = extraction.start(fleet, RUN)
    assert [(step.giver, step.taker, step.records) for step in started.handed_over] == [("b", "a", len(left))]
    assert started.stranded == {}
    extraction.follow(fleet, RUN, lambda *_: None)
    _made_once(site)
    assert extraction.start(fleet, RUN).handed_over == []
    assert _between(fleet) == {"a": {}, "b": {}}


def test_status_and_pull_name_records_of_a_complete_run_that_lie_between_two_hosts(
    site: Site, clone: Path, tmp_path: Path
) -> None:
    fleet = _begun_with_a_slow_host(site, delay=0.2)
    assert _between(fleet) == {"a": {}, "b": {}}
    assert _lease(fleet, "b", "a", 300)
    extraction.follow(fleet, RUN, lambda *_: None)
    pulling = ("pull", "--to", str(tmp_path / "to"))
    lost = re.compile(
        r"b: trial: \d+ records? given to a did not arrive there, because a command was interrupted, so no host makes "
        r"them: `inv extract --hosts all --run trial` hands them over\."
    )
    said = _typed(site, clone, "status")[1]
    assert lost.search(said), said
    code, said = _typed(site, clone, *pulling)
    assert code == 1, said
    assert "no host brings the missing records" in said
    code, said = _typed(site, clone, "extract")
    assert code == 0, said
    said = _typed(site, clone, "status")[1]
    assert not lost.search(said), said
    code, said = _typed(site, clone, *pulling)
    assert code == 0, said


def _between(fleet: Fleet) -> dict[str, dict[str, dict[str, int]]]:
    """What `inv status` says of records that a host gave away and that did not arrive."""
    return {outcome.host.name: outcome.result.not_taken for outcome in status(fleet, RUN)}


def _typed(site: Site, clone: Path, *words: str) -> tuple[int, str]:
    """The exit code and the text of a typed command, on one line each sentence."""
    environment = {**os.environ, "COLUMNS": "1000"}
    done = subprocess.run(
        inv(site, *words), cwd=clone, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=180,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_plan_after_moves_says_where_each_record_is_and_the_next_epoch_keeps_it_there(site: Site) -> None:
    site.serve("a", delay=0.01)
    slow = site.serve("b", delay=0.5, high_water=30_000)
    fleet = site.fleet()
    plan = extraction.start(fleet, RUN).plan
    until(lambda: len(slow.seen()) > 0, "a request to b")
    mover = Watched(fleet)
    told = mover.ask()
    mover._move(Move("b", "a", 300), plan.epoch, told["a"].spare.longest)
    extraction.follow(fleet.narrowed([fleet.hosts[0]]), RUN, lambda *_: None)
    now = plan_as_moved(fleet, plan)
    a, b = now.share("a"), now.share("b")
    assert a is not None
    assert b is not None
    assert ranges.count(a.ranges) + ranges.count(b.ranges) == len(LENGTHS)
    assert finished(fleet)["a"] == set(ranges.indices(a.ranges))
    lost = extraction.start(site.fleet("a"), RUN).plan  # b is given up: only what b had left is made again
    extraction.follow(site.fleet("a"), RUN, lambda *_: None)
    assert lost.epoch == 2
    assert finished(site.fleet("a"))["a"] == EVERY
    again = {index for index, times in site.servers["a"].seen().items() if times > 1}
    assert again == set()
    assert moved(fleet, plan.identity)["a"].taken == []


def test_a_taker_that_fails_is_told_and_the_records_come_to_it_later(site: Site, monkeypatch: Any) -> None:
    site.serve("a", delay=0.01)
    site.serve("b", delay=0.5, high_water=30_000)
    fleet = site.fleet()
    extraction.start(fleet, RUN)
    mover = Watched(fleet)
    true, failures = Mover._start, [HostError("a fault of this test")]

    def fail_once(self: Mover, *given: Any) -> Any:
        if failures:
            raise failures.pop()
        return true(self, *given)

    monkeypatch.setattr(Mover, "_start", fail_once)
    monkeypatch.setattr("hosts.commands.moves.REST_SECONDS", 0.0)
    with attended(mover) as attendant:
        extraction.follow(fleet, RUN, lambda *_: None, attendant)
    assert [error.message for error in mover.errors] == ["a fault of this test"]
    _made_once(site)
