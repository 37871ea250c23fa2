"""Moves open records from the slowest host to a host that is done, while a laptop is attached to a run.

Runs on the laptop, beside `inv extract`, `inv pull --follow` and `inv status --watch`. Hosts cannot reach each other
over SSH, so every step passes through here: a lease at the giver, the same records at the taker, and the taker's
process started if it has ended. The hosts' own leases are the truth; nothing of it is kept on the laptop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from hosts.errors import RoostError
from hosts.fleet import Fleet
from hosts.inventory.model import Host
from hosts.plan.moving import Move, Runner, as_moved, next_moves
from hosts.plan.plan import Plan
from hosts.transport.backend import Backend
from remote.shared import ranges
from remote.shared.messages.extract import ExtractorState, ExtractRequest, RunRequest, RunStatus
from remote.shared.messages.lease import (
    Lease,
    LeaseRequest,
    LeaseResult,
    LeasesRequest,
    LeasesResult,
    Moved,
    TakeRequest,
    TakeResult,
)
from remote.shared.messages.run import RunIdentity

T = TypeVar("T")

CALL_SECONDS = 60.0
START_SECONDS = 300.0
REST_SECONDS = 30.0
"""Seconds without steps for a host on which a step failed, or that had no records to give."""
TAKE_TOKENS = 1_000_000
"""Tokens in one call of `take`: about 6 MB of JSON."""
GIVING = ("running", "waiting", "failed")
"""Status words of a run whose open records may move to other hosts; not if a person paused or stopped it."""


@dataclass(frozen=True)
class Step:
    """Records that moved from one host to another."""

    giver: str
    taker: str
    records: int
    tokens: int


OnStep = Callable[[Host, Step | RoostError], None]
"""Is called with each step and its taker, and with each error and the host on which a step failed."""


class Mover:
    """Moves one run's work between the hosts of a fleet."""

    def __init__(self, fleet: Fleet, identity: RunIdentity, on_step: OnStep = lambda *_: None) -> None:
        self._fleet, self._identity, self._on_step = fleet.unwatched(), identity, on_step
        self._hosts = {host.name: host for host in fleet.hosts}
        self._speeds: dict[str, float] = {}
        self._rests_until: dict[str, float] = {}
        self._unsure = True
        """Whether hosts may have given records that did not reach their takers."""

    def ask(self) -> dict[str, RunStatus]:
        """Return the run's status on each host that answers."""
        request = RunRequest(run=self._identity.name)
        outcomes = self._fleet.call("status", request, RunStatus, deadline=CALL_SECONDS)
        return {outcome.host.name: outcome.result for outcome in outcomes if outcome.ok}

    def step(self, told: dict[str, RunStatus]) -> bool:
        """Make the steps that are due, and return whether there were any. A step that fails is tried again later."""
        epoch = max((status.state.epoch for status in told.values()), default=0)
        here = {name: status for name, status in told.items() if status.state.epoch == epoch and name in self._hosts}
        if len(here) < 2:
            return False
        made = self._unsure
        if self._unsure:
            self.hand_over_rest(epoch)
        for name, status in here.items():
            self._note_speed(name, status)
        for move in next_moves([self._runner(name, status) for name, status in here.items()]):
            self._move(move, epoch, here[move.taker].spare.longest)
            made = True
        for name, status in here.items():
            if status.word == "complete" and not status.alive and status.state.counts.tokens_open:
                self._on(name, lambda there: self._start(there, epoch))
                made = True
        return made

    def _note_speed(self, name: str, status: RunStatus) -> None:
        """Remember a host's speed while it works; the last minute is no measure if it has just begun."""
        now, known = status.state.tokens_per_second, self._speeds.get(name)
        if now > 0 and (known is None or status.word == "running"):
            self._speeds[name] = now if known is None else (known + now) / 2

    def _runner(self, name: str, status: RunStatus) -> Runner:
        typical = sum(self._speeds.values()) / len(self._speeds) if self._speeds else 0.0
        found = runner(name, status, self._speeds.get(name, typical))
        rested = time.monotonic() >= self._rests_until.get(name, 0.0)
        return found if rested else replace(found, takes=False, gives=False)

    def _move(self, move: Move, epoch: int, longest: int) -> None:
        request = LeaseRequest(
            identity=self._identity, epoch=epoch, holder=move.taker, tokens=move.tokens, longest=longest
        )
        leases = self._on(move.giver, lambda there: _leases(there, request))
        if leases:
            self._hand_over(move.giver, move.taker, epoch, leases)
        else:
            self._rest(move.giver)

    def _hand_over(self, giver: str, taker: str, epoch: int, leases: list[Lease]) -> None:
        def take(there: Backend) -> int:
            taken = 0
            for part in _parts(leases):
                request = TakeRequest(identity=self._identity, epoch=epoch, leases=part)
                taken += there.call("take", request, TakeResult, deadline=CALL_SECONDS).records
            self._start(there, epoch)
            return taken

        records = self._on(taker, take)
        if records is not None:
            self._on_step(self._hosts[taker], Step(giver, taker, records, sum(lease.tokens for lease in leases)))

    def _start(self, there: Backend, epoch: int) -> ExtractorState:
        """Start the run's process if it does not run. The process takes the records up by itself."""
        request = ExtractRequest(run=self._identity.name, identity=self._identity, epoch=epoch)
        return there.call("extract", request, ExtractorState, deadline=START_SECONDS)

    def hand_over_rest(self, epoch: int) -> None:
        """Hand over what was given and did not arrive, because a laptop was cut off in between."""
        self._unsure = False
        told = moved(self._fleet, self._identity)
        for (giver, holder), lost in _unarrived(told, epoch).items():
            if holder not in told or told[holder].epoch != epoch:
                self._unsure = True  # the host does not answer now
                continue
            again = [lease.id for lease in lost]
            request = LeaseRequest(identity=self._identity, epoch=epoch, holder=holder, again=again)
            leases = self._on(giver, lambda there, request=request: _leases(there, request))  # type: ignore[misc]
            if leases:
                self._hand_over(giver, holder, epoch, leases)

    def _on(self, name: str, action: Callable[[Backend], T]) -> T | None:
        """Return the result of an action on a host; None if it failed. The error is reported once."""
        host = self._hosts[name]
        try:
            return action(self._fleet.backend(host))
        except RoostError as error:
            self._unsure = True
            self._rest(name)
            self._on_step(host, error)
            return None

    def _rest(self, name: str) -> None:
        self._rests_until[name] = time.monotonic() + REST_SECONDS


def runner(name: str, status: RunStatus, speed: float) -> Runner:
    """Return a host as `next_moves` needs it; `speed` is its tokens per second while it works."""
    return Runner(
        host=name,
        left=status.state.counts.tokens_open,
        speed=speed if status.word in ("running", "complete") else 0.0,
        takes=status.spare.takes,
        gives=status.word in GIVING,
        room=status.spare.room_tokens,
    )


def moved(fleet: Fleet, identity: RunIdentity) -> dict[str, LeasesResult]:
    """Return the leases that each answering host gave and was given, without hosts that do not know the run."""
    told = fleet.unwatched().call("leases", LeasesRequest(identity=identity), LeasesResult, deadline=CALL_SECONDS)
    return {outcome.host.name: outcome.result for outcome in told if outcome.ok}


def between_hosts(fleet: Fleet, identity: RunIdentity) -> dict[str, dict[str, int]]:
    """Return how many records each host gave to another host that did not get them, because a command was interrupted.

    The hosts are those that answer: giver, then holder.
    """
    told = moved(fleet, identity)
    epoch = max((result.epoch for result in told.values()), default=0)
    found: dict[str, dict[str, int]] = {}
    for (giver, holder), lost in _unarrived(told, epoch).items():
        if holder in told and told[holder].epoch == epoch:
            found.setdefault(giver, {})[holder] = sum(ranges.count(lease.ranges) for lease in lost)
    return found


def _unarrived(told: dict[str, LeasesResult], epoch: int) -> dict[tuple[str, str], list[Moved]]:
    """Return the leases of an epoch that no host has taken, by giver and holder."""
    arrived = {lease.id for result in told.values() for lease in result.taken}
    lost: dict[tuple[str, str], list[Moved]] = {}
    for result in told.values():
        for lease in result.given if result.epoch == epoch else ():
            if lease.id not in arrived:
                lost.setdefault((lease.giver, lease.holder), []).append(lease)
    return lost


def plan_as_moved(fleet: Fleet, plan: Plan) -> Plan:
    """Return the plan with every record in the share of the host that has it now, by the hosts' leases."""
    told = [result for result in moved(fleet, plan.identity).values() if result.epoch == plan.epoch]
    leases: list[Moved] = [lease for result in told for lease in [*result.given, *result.taken]]
    return as_moved(plan, leases) if leases else plan


def _leases(giver: Backend, request: LeaseRequest) -> list[Lease]:
    found: list[Lease] = []
    giver.call(
        "lease",
        request,
        LeaseResult,
        deadline=CALL_SECONDS,
        on_item=lambda value: found.append(Lease.model_validate(value)),
    )
    return found


def _parts(leases: list[Lease]) -> list[list[Lease]]:
    """Yield parts of about `TAKE_TOKENS` tokens, none of them empty."""
    parts: list[list[Lease]] = [[]]
    for lease in leases:
        if sum(one.tokens for one in parts[-1]) >= TAKE_TOKENS:
            parts.append([])
        parts[-1].append(lease)
    return parts
