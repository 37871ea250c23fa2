"""`inv extract`: send each host its share of a run, start the extractors detached, and follow their progress.

Runs on the laptop. A host of the plan that was not chosen counts as lost: the records that it has not delivered
go to the others in a new epoch, and the host is fenced as soon as it can be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hosts.commands.assign import assignments
from hosts.errors import UsageError
from hosts.fleet import Fleet, Outcome, fleet_of
from hosts.inventory.model import Host
from hosts.plan import ranges
from hosts.plan.lengths import read_lengths, read_manifest
from hosts.plan.plan import Plan, load, replan, save
from hosts.pull.push import push
from hosts.transport.backend import Backend
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.envelope import Progress
from remote.shared.messages.extract import (
    ControlRequest,
    ExtractorState,
    ExtractRequest,
    FenceRequest,
    FollowRequest,
    ReopenRequest,
    ReopenResult,
    RunRequest,
    RunStatus,
    ShardBatch,
    ShardsRequest,
    ShardsResult,
)
from remote.shared.paths import ASSIGNMENT_FILE
from remote.shared.transfer.ledger import DestinationLedger

START_DEADLINE_SECONDS = 300.0
FENCE_DEADLINE_SECONDS = 15.0

OnProgress = Callable[[Host, Progress], None]


@dataclass
class Started:
    """The result of starting a run."""

    plan: Plan
    outcomes: list[Outcome[ExtractorState]]
    given_away: dict[str, int] = field(default_factory=dict)
    """Hosts that lost their share, with the number of records given to others."""
    unfenced: dict[str, str] = field(default_factory=dict)
    """Lost hosts that could not be fenced, with the reason: they may still extract records that others have now."""
    idle: list[str] = field(default_factory=list)
    """Chosen hosts that have no share in the plan: nothing was started there."""
    reopened: dict[str, ReopenResult] = field(default_factory=dict)
    """Quarantined records that are open again, by host; empty unless `reopen` was given."""


@dataclass
class Preview:
    """What a start would do, and the current state of the run on each host."""

    plan: Plan
    given_away: dict[str, int]
    outcomes: list[Outcome[RunStatus]]
    reopened: dict[str, ReopenResult]
    """Quarantined records that would be open again, by host; empty unless `reopen` was given."""


def newest_run(fleet: Fleet) -> str:
    """Return the name of the run planned last; raises UsageError if there is no plan."""
    root = fleet.inventory.kept.runs
    plans = sorted(root.glob("*/plan.json"), key=lambda path: path.stat().st_mtime)
    if not plans:
        raise UsageError(f"No run is planned in {root}.", remedy="Make a plan with inv plan.")
    return plans[-1].parent.name


def delivered_to(destination: Path) -> Ranges:
    """Return the records that a destination's ledger lists as delivered; raises UsageError if there is no ledger."""
    path = destination.expanduser() / "roost" / "ledger.sqlite"
    if not path.exists():
        raise UsageError(f"{destination} is not the destination of a pull: there is no {path}.")
    with DestinationLedger(path) as ledger:
        return ranges.from_indices(ledger.indices())


def start(
    fleet: Fleet,
    run: str,
    *,
    then_stop: bool | None = None,
    delivered: Ranges | None = None,
    reopen: ReopenRequest | None = None,
    on_progress: OnProgress | None = None,
) -> Started:
    """Give every host its share and start its extractor; an extractor that runs already takes up the newest share.

    `delivered` are the records that the destination has; `reopen` says which quarantined ones are tried again. Raises
    UsageError if there is no plan; an error on one host is that host's outcome.
    """
    path = fleet.inventory.kept.plan(run)
    before = load(path)
    plan = _without_lost(fleet, before, delivered or [])
    folders, plan = _folders(fleet, plan, on_progress)
    save(plan, path)
    given_away = _given_away(before, plan)
    chosen = fleet.narrowed([host for host in fleet.hosts if host.name in folders])
    idle = [host.name for host in fleet.hosts if host.name not in folders]
    reopened: dict[str, ReopenResult] = {}

    def begin(backend: Backend) -> ExtractorState:
        name = backend.host.name
        _send(backend, plan, folders[name], on_progress)
        if reopen is not None:
            reopened[name] = backend.call("reopen", reopen, ReopenResult)
        request = ExtractRequest(run=plan.run, epoch=plan.epoch, then_stop=then_stop)
        return backend.call("extract", request, ExtractorState, deadline=START_DEADLINE_SECONDS)

    return Started(plan, chosen.each(begin), given_away, _fence(fleet, plan), idle, reopened)


def preview(fleet: Fleet, run: str, delivered: Ranges | None = None, reopen: ReopenRequest | None = None) -> Preview:
    """Return what `start` would do; writes nothing, and changes nothing on the hosts."""
    before = load(fleet.inventory.kept.plan(run))
    plan = _without_lost(fleet, before, delivered or [])
    reopened: dict[str, ReopenResult] = {}

    def stand(backend: Backend) -> RunStatus:
        standing = _standing(backend, run)
        if reopen is not None and standing.run:
            asked = reopen.model_copy(update={"dry_run": True})
            reopened[backend.host.name] = backend.call("reopen", asked, ReopenResult)
        return standing

    return Preview(plan, _given_away(before, plan), fleet.each(stand), reopened)


def _standing(backend: Backend, run: str) -> RunStatus:
    """Ask a host for the state of a run; a host that does not know the run has done none of it."""
    try:
        return backend.call("status", RunRequest(run=run), RunStatus)
    except UsageError:
        return RunStatus(run="", alive=False, state=ExtractorState(run=run, epoch=0, status="stopped"))


def _given_away(before: Plan, plan: Plan) -> dict[str, int]:
    return {
        share.host: share.records
        for share in before.shares
        if share.host in plan.lost and share.host not in before.lost
    }


def follow(fleet: Fleet, run: str, on_status: Callable[[Host, RunStatus], None]) -> list[Outcome[RunStatus]]:
    """Report each host's state about every two seconds until no extractor is at work; changes nothing."""
    return fleet.call(
        "follow",
        FollowRequest(run=run),
        RunStatus,
        deadline=None,
        on_item=lambda host, value: on_status(host, RunStatus.model_validate(value)),
    )


def steer(fleet: Fleet, run: str, action: str) -> list[Outcome[RunStatus]]:
    """Ask every host's extractor to `pause`, `resume` or `stop`; records in flight are finished first."""
    return fleet.call("control", ControlRequest.model_validate({"run": run, "action": action}), RunStatus)


def _without_lost(fleet: Fleet, plan: Plan, delivered: Ranges) -> Plan:
    """Return the plan, or its next epoch if some of its hosts were not chosen."""
    chosen = {host.name for host in fleet.hosts}
    if all(share.host in chosen for share in plan.shares):
        return plan
    dataset = Path(plan.dataset)
    lengths = read_lengths(dataset, read_manifest(dataset))
    weights = {host.name: _weight(plan, host.name) for host in fleet.hosts}
    return replan(plan, lengths, weights, _done(fleet, plan), delivered)


def _weight(plan: Plan, host: str) -> float:
    """Return each host's planned speed; a host without one is given the average."""
    share = plan.share(host)
    weights = [share.weight for share in plan.shares]
    return share.weight if share else sum(weights) / len(weights)


def _done(fleet: Fleet, plan: Plan) -> dict[str, Ranges]:
    """Return the records that each host has finished; a host that does not answer counts as having none."""
    found: dict[str, set[int]] = {host.name: set() for host in fleet.hosts}
    records = read_manifest(Path(plan.dataset)).records

    def take(host: Host, value: dict[str, object]) -> None:
        rows = ShardBatch.model_validate(value).rows
        found[host.name].update(row.index for row in rows if 0 <= row.index < records)

    fleet.call("shards", ShardsRequest(run=plan.run), ShardsResult, on_item=take)
    return {host: ranges.from_indices(indices) for host, indices in found.items()}


def _folders(fleet: Fleet, plan: Plan, on_progress: OnProgress | None) -> tuple[dict[str, Path], Plan]:
    """Write the assignment folders; if the inventory's settings have changed since the last time, as a new epoch.

    A host never replaces the assignment of an epoch, so changed settings need a new epoch.
    """
    before = _descriptions(fleet, plan)
    folders = assignments(fleet, plan, on_progress)
    after = {host: (folder / "assignment.json").read_bytes() for host, folder in folders.items()}
    if all(before.get(host, content) == content for host, content in after.items()):
        return folders, plan
    epoch = plan.epoch + 1
    shares = [share.model_copy(update={"epoch": epoch}) for share in plan.shares]
    plan = plan.model_copy(update={"epoch": epoch, "shares": shares})
    return assignments(fleet, plan, on_progress), plan


def _descriptions(fleet: Fleet, plan: Plan) -> dict[str, bytes]:
    folder = fleet.inventory.kept.assignment
    paths = {share.host: folder(plan.run, share.epoch, share.host) / "assignment.json" for share in plan.shares}
    return {host: path.read_bytes() for host, path in paths.items() if path.exists()}


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
        request = FenceRequest(run=plan.run, epoch=plan.epoch)
        told = others.call("fence", request, RunStatus, deadline=FENCE_DEADLINE_SECONDS)
    failed = [outcome for outcome in told if outcome.error is not None and outcome.error.kind != UsageError.kind]
    return {outcome.host.name: str(outcome.error) for outcome in failed}
