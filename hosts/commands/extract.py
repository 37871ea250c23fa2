"""`inv extract`: sends each host its share of a run, starts the extractors detached and follows their progress.

Runs on the laptop. A host of the plan that was not chosen counts as lost: its undelivered records go to the others in a
new epoch, and the host is fenced as soon as it can be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hosts.commands.assign import assignments
from hosts.commands.attending import Attendant
from hosts.commands.moves import Mover, Step, plan_as_moved
from hosts.commands.plan import leads
from hosts.commands.runs import HeldOn, finished_records, held, holders, local_plan, plan_for, refuse_conflicts
from hosts.errors import RoostError, UsageError
from hosts.fleet import Fleet, Outcome, fleet_of
from hosts.inventory.model import Host
from hosts.plan.lengths import read_costs, read_manifest
from hosts.plan.plan import Plan, dataset_of, replan, save
from hosts.transport.backend import Backend
from hosts.transport.push import push
from remote.shared import ranges
from remote.shared.messages.clean import CleanRequest, CleanResult
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.envelope import Progress
from remote.shared.messages.extract import (
    Assignment,
    ControlRequest,
    ExtractorState,
    ExtractRequest,
    FenceRequest,
    FollowRequest,
    ReopenRequest,
    ReopenResult,
    RunRequest,
    RunsRequest,
    RunsResult,
    RunStatus,
    ShardBatch,
    ShardsRequest,
    ShardsResult,
)
from remote.shared.messages.run import RunIdentity
from remote.shared.paths import ASSIGNMENT_FILE
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.ledger import DestinationLedger
from remote.shared.transfer.manifest import MANIFEST, refuse_other

START_DEADLINE_SECONDS = 300.0
FENCE_DEADLINE_SECONDS = 15.0

OnProgress = Callable[[Host, Progress], None]
Launch = Callable[[Backend, Plan], ExtractorState]


@dataclass
class Started:
    """The result of starting a run."""

    plan: Plan
    outcomes: list[Outcome[ExtractorState]]
    given_away: dict[str, int] = field(default_factory=dict)
    """The number of records that each lost host gives to others."""
    unfenced: dict[str, str] = field(default_factory=dict)
    """The reason for each lost host that could not be fenced; it may still extract records that others have now."""
    idle: list[str] = field(default_factory=list)
    """Chosen hosts without a share in the plan, where nothing was started."""
    reopened: dict[str, ReopenResult] = field(default_factory=dict)
    """Quarantined records that are open again, by host; empty unless `reopen` was given."""
    handed_over: list[Step] = field(default_factory=list)
    """Records between two hosts, whose move an interrupted command had left unfinished."""
    stranded: dict[str, str] = field(default_factory=dict)
    """The error of each host on which such a move could not be finished now."""


@dataclass
class Preview:
    """What a start would do, and the current state of the run on each host."""

    plan: Plan
    given_away: dict[str, int]
    outcomes: list[Outcome[RunStatus]]
    reopened: dict[str, ReopenResult]
    """Quarantined records that would be open again, by host; empty unless `reopen` was given."""


@dataclass(frozen=True)
class Reopening:
    """Quarantined records to try again: these indices, or all if there are none."""

    indices: list[int] = field(default_factory=list)

    def request(self, plan: Plan) -> ReopenRequest:
        """Return the request for a host."""
        return ReopenRequest(identity=plan.identity, indices=self.indices)


def newest_run(fleet: Fleet) -> str:
    """Return the name of the run planned last; raises UsageError if there is no plan."""
    root = fleet.inventory.kept.runs
    plans = sorted(root.glob("*/plan.json"), key=lambda path: path.stat().st_mtime)
    if not plans:
        raise UsageError(f"No run is planned in {root}.", remedy="Make a plan with inv plan.")
    return plans[-1].parent.name


def plan_of(fleet: Fleet, run: str, dataset: Path | None = None) -> Plan:
    """Return the run's plan with its dataset in `dataset`, if given; raises UsageError if another dataset is there."""
    plan = plan_for(fleet, run)
    if dataset is None:
        return plan
    plan = plan.model_copy(update={"dataset": str(dataset.expanduser().absolute())})
    if dataset_of(plan) is None:
        raise UsageError(f"There is no dataset in {dataset}.", remedy="Make one with inv prepare.")
    return plan


def delivered_to(destination: Path, identity: RunIdentity) -> Ranges:
    """Return the records that a folder's ledger has as delivered; raises UsageError if the folder is not this run's."""
    folder = Destination(destination.expanduser(), folder=identity.folder)
    if not refuse_other(folder, identity):
        raise UsageError(f"No run was pulled to {destination}: it has no {MANIFEST}.")
    with DestinationLedger(folder.roost / "ledger.sqlite") as ledger:
        return ranges.from_indices(ledger.indices())


def counted_on(fleet: Fleet, run: str) -> dict[str, int]:
    """Return the number of records of each host in the run's plan that is not in the fleet."""
    plan, chosen = plan_for(fleet, run), {host.name for host in fleet.hosts}
    return {share.host: share.records for share in plan.shares if share.host not in chosen and share.records}


def start(
    fleet: Fleet,
    run: str,
    *,
    dataset: Path | None = None,
    then_stop: bool | None = None,
    delivered: Ranges | None = None,
    reopen: Reopening | None = None,
    on_progress: OnProgress | None = None,
    launch: Launch | None = None,
) -> Started:
    """Give every host its share and start its extractor; a running extractor takes up the newest share.

    If `launch` is given, it is called instead of starting an extractor, once the host has its share.

    `dataset` is the folder of the run's dataset if the plan names another folder; `delivered` are the records at the
    destination, or None if no destination was named; `reopen` says which quarantined records are tried again. Raises
    UsageError, before anything is changed, if a host holds another run of this name or a newer plan, or if a host needs
    a share and this laptop lacks the dataset. An error on one host becomes that host's outcome.
    """
    path, (plan, found) = local_plan(fleet, run), _unopposed(fleet, run, dataset)
    before, plan = plan, _for_these(fleet, plan, delivered)
    if plan is before and dataset_of(plan) is None:
        folders = _nothing_to_give(fleet, plan, found)
    else:
        folders, plan = _folders(fleet, plan, found, on_progress)
        save(plan, path)
    given_away = _given_away(before, plan)
    chosen = fleet.narrowed([host for host in fleet.hosts if host.name in folders])
    idle = [host.name for host in fleet.hosts if host.name not in folders]
    reopened: dict[str, ReopenResult] = {}

    def begin(backend: Backend) -> ExtractorState:
        name = backend.host.name
        folder = folders[name]
        if folder is not None:
            _make_way(backend, plan)
            _send(backend, plan, folder, on_progress)
        if reopen is not None:
            reopened[name] = backend.call("reopen", reopen.request(plan), ReopenResult)
        if launch is not None:
            return launch(backend, plan)
        request = ExtractRequest(run=plan.run, identity=plan.identity, epoch=plan.epoch, then_stop=then_stop)
        return backend.call(plan.task, request, ExtractorState, deadline=START_DEADLINE_SECONDS)

    started = Started(plan, chosen.each(begin), given_away, _fence(fleet, plan), idle, reopened)
    if launch is None and plan.identity.answers is None:
        _hand_over_rest(fleet.narrowed([outcome.host for outcome in started.outcomes if outcome.ok]), started)
    return started


def _hand_over_rest(fleet: Fleet, started: Started) -> None:
    """Finish moves that an interrupted command left unfinished: no host would ever make their records."""

    def tell(host: Host, told: Step | RoostError) -> None:
        if isinstance(told, Step):
            started.handed_over.append(told)
        else:
            started.stranded[host.name] = str(told)

    if len(fleet.hosts) > 1:
        Mover(fleet, started.plan.identity, tell).hand_over_rest(started.plan.epoch)


def preview(
    fleet: Fleet,
    run: str,
    delivered: Ranges | None = None,
    reopen: Reopening | None = None,
    dataset: Path | None = None,
) -> Preview:
    """Return what `start` would do; changes nothing on the hosts."""
    plan, _ = _unopposed(fleet, run, dataset)
    before, plan = plan, _for_these(fleet, plan, delivered)
    reopened: dict[str, ReopenResult] = {}

    def stand(backend: Backend) -> RunStatus:
        standing = _standing(backend, plan.run)
        if reopen is not None and standing.run:
            asked = reopen.request(plan).model_copy(update={"dry_run": True})
            reopened[backend.host.name] = backend.call("reopen", asked, ReopenResult)
        return standing

    return Preview(plan, _given_away(before, plan), fleet.each(stand), reopened)


def _standing(backend: Backend, run: str) -> RunStatus:
    """Ask a host for the state of a run; a host that does not know the run has done nothing of it."""
    try:
        return backend.call("status", RunRequest(run=run), RunStatus)
    except UsageError:
        return RunStatus(run="", alive=False, state=ExtractorState(run=run, epoch=0, status="stopped"))


def _unopposed(fleet: Fleet, run: str, dataset: Path | None) -> tuple[Plan, list[HeldOn]]:
    """Return the run's plan and the hosts that hold the run; raises UsageError if a host's run contradicts the plan."""
    plan = plan_of(fleet, run, dataset)
    found = [one for one in holders(held(fleet, plan.run), plan.run) if not _is_replaceable(one, plan)]
    refuse_conflicts(plan, found)
    return plan, found


def _is_replaceable(one: HeldOn, plan: Plan) -> bool:
    """Return whether a host holds an earlier run of this name that never finished a record: nothing would be lost."""
    return one.assignment.identity != plan.identity and not one.run.alive and not finished_records(one.run)


def _make_way(backend: Backend, plan: Plan) -> None:
    """Remove an earlier run of this name that never finished a record; `clean` refuses any other run."""
    there = backend.call("runs", RunsRequest(run=plan.run), RunsResult)
    found = holders([Outcome(backend.host, there)], plan.run)
    if any(_is_replaceable(one, plan) for one in found):
        backend.call("clean", CleanRequest(names=[plan.run], older_than_seconds=0.0), CleanResult)


def _nothing_to_give(fleet: Fleet, plan: Plan, found: list[HeldOn]) -> dict[str, Path | None]:
    """Return the hosts that hold their share of this plan already, and can continue without the dataset here.

    Raises UsageError if a chosen host still needs its share.
    """
    holding = {one.host.name for one in found if one.assignment.plan == plan.digest}
    for host in fleet.hosts:
        if plan.share(host.name) is not None and host.name not in holding:
            raise needs_dataset(plan, f"{host.name} has not been given its share of epoch {plan.epoch}")
    return {host.name: None for host in fleet.hosts if host.name in holding}


def needs_dataset(plan: Plan, why: str) -> UsageError:
    """Return the error for a laptop that has to write assignments but lacks the dataset."""
    return UsageError(
        f"{why}, but the dataset of the run {plan.run!r} is not on this laptop: {plan.dataset} has none.",
        remedy=f"Name its folder with --dataset; its digest must be {plan.identity.dataset}.",
    )


def _given_away(before: Plan, plan: Plan) -> dict[str, int]:
    return {
        share.host: share.records
        for share in before.shares
        if share.host in plan.lost and share.host not in before.lost
    }


def follow(
    fleet: Fleet, run: str, on_status: Callable[[Host, RunStatus], None], attendant: Attendant | None = None
) -> list[Outcome[RunStatus]]:
    """Report each host's state about every two seconds until its extractor has ended.

    With an `attendant`, which moves records, a host that is done may get more, so all hosts are followed to the end.
    """

    def one(backend: Backend) -> RunStatus:
        host = backend.host
        while True:
            told = backend.call(
                "follow",
                FollowRequest(run=run),
                RunStatus,
                deadline=None,
                on_item=lambda value: on_status(host, RunStatus.model_validate(value)),
            )
            if attendant is None or told.word != "complete":
                return told
            on_status(host, told)
            if not attendant.goes_on(host):
                return told

    return fleet.each(one)


def steer(fleet: Fleet, run: str, action: str) -> list[Outcome[RunStatus]]:
    """Ask every host's extractor to `pause`, `resume` or `stop`; records in flight are finished first."""
    return fleet.call("control", ControlRequest.model_validate({"run": run, "action": action}), RunStatus)


def _for_these(fleet: Fleet, plan: Plan, delivered: Ranges | None) -> Plan:
    """Return the plan, or its next epoch if it has hosts that were not chosen or lacks a chosen host.

    An added host gets nothing if no record is open, or if this laptop lacks the dataset. Raises UsageError if the plan
    counts records as delivered that the named destination does not hold.
    """
    if delivered is not None and (elsewhere := ranges.difference(plan.delivered, delivered)):
        raise UsageError(
            f"{ranges.count(elsewhere):,} records of the run {plan.run!r} (the first is {elsewhere[0][0]}) were "
            "delivered to another folder than the one in --to, and no host would extract them again for this folder.",
            remedy="Name the folder that the run is pulled to.",
        )
    chosen = {host.name for host in fleet.hosts if leads(host)}
    planned = {share.host for share in plan.shares}
    lost, dataset = sorted(planned - chosen), dataset_of(plan)
    if chosen == planned or (not lost and dataset is None):
        return plan
    if dataset is None:
        raise needs_dataset(plan, f"The share of {', '.join(lost)} would be given to others")
    plan, done = plan_as_moved(fleet, plan), _done(fleet, plan)
    if not lost and _is_finished(plan, done):
        return plan
    lengths = read_costs(dataset, read_manifest(dataset))
    weights = {host: _weight(plan, host) for host in sorted(chosen)}
    return replan(plan, lengths, weights, done, delivered, relieve=bool(chosen - planned)).signed()


def _is_finished(plan: Plan, done: dict[str, Ranges]) -> bool:
    """Return whether every host has finished its share, so that nothing is left for an added host."""
    return not any(ranges.difference(share.ranges, done.get(share.host, [])) for share in plan.shares)


def _weight(plan: Plan, host: str) -> float:
    """Return the host's planned speed, or the average if it has none."""
    share = plan.share(host)
    weights = [share.weight for share in plan.shares]
    return share.weight if share else sum(weights) / len(weights)


def _done(fleet: Fleet, plan: Plan) -> dict[str, Ranges]:
    """Return the records that each host has finished; a host that does not answer counts as having finished none."""
    found: dict[str, set[int]] = {host.name: set() for host in fleet.hosts}

    def take(host: Host, value: dict[str, object]) -> None:
        rows = ShardBatch.model_validate(value).rows
        found[host.name].update(row.index for row in rows if 0 <= row.index < plan.records)

    fleet.call("shards", ShardsRequest(identity=plan.identity, freed=True), ShardsResult, on_item=take)
    return {host: ranges.from_indices(indices) for host, indices in found.items()}


def _folders(
    fleet: Fleet, plan: Plan, found: list[HeldOn], on_progress: OnProgress | None
) -> tuple[dict[str, Path | None], Plan]:
    """Write the assignment folders, in a new epoch if a host holds this epoch with other settings of the inventory.

    A host never changes an epoch's assignment. The hosts' assignments decide, not the folders on this laptop: an
    interrupted call may have written folders here that no host has got.
    """
    folders = assignments(fleet, plan, on_progress)
    given = {one.host.name: one.assignment for one in found if one.assignment.epoch == plan.epoch}
    made = {host: read_assignment(folder) for host, folder in folders.items()}
    if any(host in given and given[host] != assignment for host, assignment in made.items()):
        plan, epoch = plan_as_moved(fleet, plan), plan.epoch + 1
        shares = [share.model_copy(update={"epoch": epoch}) for share in plan.shares]
        plan = plan.model_copy(update={"epoch": epoch, "shares": shares}).signed()
        folders = assignments(fleet, plan, on_progress)
    return {**folders}, plan


def read_assignment(folder: Path) -> Assignment:
    """Return the assignment that `assign` has just written."""
    return Assignment.model_validate_json((folder / ASSIGNMENT_FILE).read_bytes())


def _send(backend: Backend, plan: Plan, folder: Path, on_progress: OnProgress | None) -> None:
    """Push a host its share of the plan's epoch."""
    host = backend.host

    def sent(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(host, Progress(text="sending its share", done=done, total=total, unit="bytes"))

    push(backend, folder, f"{host.workdir}/runs/{plan.run}/assignments/{plan.epoch}", sent, owner=ASSIGNMENT_FILE)


def _fence(fleet: Fleet, plan: Plan) -> dict[str, str]:
    """Fence the lost hosts; return those that could not be reached, with the reason."""
    lost = [host for host in fleet.inventory.hosts.values() if host.name in plan.lost]
    with fleet_of(fleet.inventory, lost) as others:
        request = FenceRequest(identity=plan.identity, epoch=plan.epoch)
        told = others.call("fence", request, RunStatus, deadline=FENCE_DEADLINE_SECONDS)
    failed = [outcome for outcome in told if outcome.error is not None and outcome.error.kind != UsageError.kind]
    return {outcome.host.name: str(outcome.error) for outcome in failed}
