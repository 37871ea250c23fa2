"""Lists the runs that the hosts hold, and takes their plans for a laptop that did not make them. Laptop's side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from hosts.errors import ProtocolError, UsageError, nearest
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.plan.plan import Plan, keep_other, load, save
from hosts.transport.backend import Backend
from remote.shared.messages.extract import Assignment, HeldRun, PlanRequest, PlanResult, RunsRequest, RunsResult
from remote.shared.messages.run import RunIdentity, refuse_other_run

LISTING_DEADLINE_SECONDS = 60.0
OTHER_NAME = "Choose one run by naming its hosts with --hosts, or remove the other run with inv clean."


@dataclass(frozen=True)
class HeldOn:
    """A run on one of its hosts."""

    host: Host
    run: HeldRun
    assignment: Assignment


def held(fleet: Fleet, run: str = "") -> list[Outcome[RunsResult]]:
    """Ask every host for the run of that name, or for all its runs; read-only."""
    return fleet.call("runs", RunsRequest(run=run), RunsResult, deadline=LISTING_DEADLINE_SECONDS)


def holders(outcomes: list[Outcome[RunsResult]], run: str) -> list[HeldOn]:
    """Return the hosts that hold an identified run of this name."""
    return [
        HeldOn(outcome.host, one, one.assignment)
        for outcome in outcomes
        if outcome.value is not None
        for one in outcome.value.runs
        if one.name == run and one.assignment is not None
    ]


def one_identity(fleet: Fleet, run: str) -> RunIdentity | None:
    """Return the identity of the run that the hosts hold under this name; None if they hold different runs, or none."""
    identities = {one.assignment.identity for one in holders(held(fleet.unwatched(), run), run)}
    return identities.pop() if len(identities) == 1 else None


def finished_records(run: HeldRun) -> int:
    """Return the number of records that the host has finished in all epochs, delivered or not."""
    return run.counts.done + run.counts.freed + run.counts.beyond


def local_plan(fleet: Fleet, run: str) -> Path:
    """Return the path of the run's plan on this laptop."""
    return fleet.inventory.kept.plan(run)


def plan_for(fleet: Fleet, run: str) -> Plan:
    """Return the run's plan on this laptop; without one, take the newest plan from the hosts and keep it here.

    Raises UsageError if there is no plan anywhere.
    """
    path = local_plan(fleet, run)
    return load(path) if path.exists() else take(fleet, run)


def take(fleet: Fleet, run: str) -> Plan:
    """Take the newest plan of the run from the hosts; a different plan on this laptop is kept under `plans/`.

    Raises UsageError if no answering host has a plan, or if two hosts hold different runs of that name.
    """
    found = [one for one in holders(held(fleet, run), run) if one.run.has_plan]
    path = local_plan(fleet, run)
    if not found:
        raise UsageError(
            f"There is no plan of the run {run!r}, neither at {path} nor on the chosen hosts.",
            remedy=nearest(run, [folder.name for folder in path.parent.parent.glob("*")])
            or "Make one with inv plan; inv runs --hosts all lists the runs that the hosts hold.",
        )
    newest = max(found, key=lambda one: one.assignment.epoch)
    for one in found:
        refuse_other_run(one.host.name, one.assignment.identity, newest.assignment.identity, OTHER_NAME)
    plan = _plan_of(fleet.backend(newest.host), newest.assignment.identity)
    keep_other(path, plan)
    save(plan, path)
    return plan


def _plan_of(backend: Backend, identity: RunIdentity) -> Plan:
    content = backend.call("plan", PlanRequest(identity=identity), PlanResult).content
    try:
        plan = Plan.model_validate_json(content)
    except ValidationError as error:
        raise ProtocolError(
            f"{backend.host.name} holds a plan that cannot be read: {error.errors()[0]['msg']}."
        ) from error
    refuse_other_run(backend.host.name, plan.identity, identity, OTHER_NAME)
    return plan


def refuse_conflicts(plan: Plan, found: list[HeldOn]) -> None:
    """Raise UsageError if a host holds another run of this name, or a share that is not in this plan.

    If two laptops re-plan the same run, each learns of the other here, before it changes anything.
    """
    for one in found:
        host, given = one.host.name, one.assignment
        refuse_other_run(
            host,
            given.identity,
            plan.identity,
            f"Plan the run under another name; or pull what you need of {host}'s run and remove it there with "
            f"inv clean --host {host} --named {plan.run} --force.",
        )
        by = given.planned_by or "another launcher"
        remedy = f"Take the newer plan with inv runs --hosts all --take {plan.run}, then run this again."
        mine = f"the plan on this laptop is of epoch {plan.epoch}, made by {plan.planned_by or 'nobody known'}"
        if given.epoch > plan.epoch:
            raise UsageError(
                f"{host} was given epoch {given.epoch} of the run {plan.run!r} by {by}; {mine}.", remedy=remedy
            )
        if given.epoch == plan.epoch and given.plan not in ("", plan.digest):
            raise UsageError(
                f"{host} was given a different plan of epoch {given.epoch} of the run {plan.run!r} by {by}; {mine}.",
                remedy=remedy,
            )


class ListedRun(BaseModel):
    """A run over all hosts that hold something of it, planned by any laptop."""

    name: str
    identity: RunIdentity
    state: str
    records_done: int = 0
    records: int = 0
    """The dataset's records if the plan is here, else the records that the hosts were given."""
    tokens_done: int = 0
    bytes_done: int = 0
    hosts: list[str] = Field(default_factory=list)
    planned_by: str = ""
    planned_at: float = 0.0
    changed_at: float = 0.0
    planned_here: bool = False
    """Whether this laptop has the run's plan."""


def listed(fleet: Fleet, outcomes: list[Outcome[RunsResult]]) -> list[ListedRun]:
    """Return the hosts' runs and the runs planned here; the run that changed last comes last."""
    found: dict[RunIdentity, list[HeldOn]] = {}
    for name in {run.name for outcome in outcomes if outcome.value is not None for run in outcome.value.runs}:
        for one in holders(outcomes, name):
            found.setdefault(one.assignment.identity, []).append(one)
    plans = {plan.identity: plan for plan in _local_plans(fleet)}
    every = [_listed(identity, found.get(identity, []), plans.get(identity)) for identity in {**found, **plans}]
    return sorted(every, key=lambda run: (run.changed_at, run.name))


def _listed(identity: RunIdentity, on: list[HeldOn], plan: Plan | None) -> ListedRun:
    counts = [one.run.counts for one in on]
    newest = max((one.assignment for one in on), key=lambda given: given.epoch, default=None)
    by, at = (plan.planned_by, plan.planned_at) if plan else ("", 0.0)
    return ListedRun(
        name=identity.name,
        identity=identity,
        state=", ".join(sorted({one.run.status for one in on})) or "planned",
        records_done=sum(finished_records(one.run) for one in on),
        records=plan.records if plan else sum(one.assigned for one in counts),
        tokens_done=sum(one.tokens_done for one in counts),
        bytes_done=sum(one.bytes_done for one in counts),
        hosts=[one.host.name for one in on],
        planned_by=newest.planned_by if newest else by,
        planned_at=newest.planned_at if newest else at,
        changed_at=max([at, *(one.run.changed_at for one in on)]),
        planned_here=plan is not None,
    )


def _local_plans(fleet: Fleet) -> Iterator[Plan]:
    """Yield every readable plan of this laptop."""
    for path in sorted(fleet.inventory.kept.runs.glob("*/plan.json")):
        with suppress(UsageError):
            yield load(path)
