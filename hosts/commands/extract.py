"""`inv extract`: a run's shares to their hosts, detached extractors there, and how they get on.

Runs on the laptop. A host that the plan counted on and that is not among those chosen is taken for lost: what it has
not delivered goes to the others in a new epoch, and it is fenced as soon as it can be reached.
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
    """What starting a run came to."""

    plan: Plan
    outcomes: list[Outcome[ExtractorState]]
    given_away: dict[str, int] = field(default_factory=dict)
    """Hosts that lost their share, with its open records."""
    unfenced: dict[str, str] = field(default_factory=dict)
    """Lost hosts that could not be told, with the reason: they may go on with what is others' now."""
    idle: list[str] = field(default_factory=list)
    """Chosen hosts that have no share in the plan: nothing was started there."""
    reopened: dict[str, ReopenResult] = field(default_factory=dict)
    """Quarantined records that are open again, a host; empty if that was not asked for."""


@dataclass
class Preview:
    """What a start would do, and how each host stands with the run now."""

    plan: Plan
    given_away: dict[str, int]
    outcomes: list[Outcome[RunStatus]]
    reopened: dict[str, ReopenResult]
    """Quarantined records that would be open again, a host; empty if that was not asked for."""


def newest_run(fleet: Fleet) -> str:
    """The run that was planned last; raises UsageError if none was."""
    root = fleet.inventory.kept.runs
    plans = sorted(root.glob("*/plan.json"), key=lambda path: path.stat().st_mtime)
    if not plans:
        raise UsageError(f"No run is planned in {root}.", remedy="Make a plan with inv plan.")
    return plans[-1].parent.name


def delivered_to(destination: Path) -> Ranges:
    """The records that a folder's own ledger says were delivered; raises UsageError if it has none."""
    path = destination.expanduser() / "roost" / "ledger.sqlite"
    if not path.exists():
        raise UsageError(f"{destination} is not where a run was pulled to: there is no {path}.")
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
    """Give every host its share and start its extractor; one that runs already goes on with the newest share.

    `delivered` are the records that the destination has; `reopen` says which quarantined ones are tried again. Raises
    UsageError if there is no plan; what goes wrong on one host is that host's outcome.
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
    """What `start` would do; writes nothing, and changes nothing on the hosts."""
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
    """How a host stands with a run; one that has not heard of it stands at its beginning."""
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
    """Report how each host stands, about every two seconds, until no extractor is at work; changes nothing."""
    return fleet.call(
        "follow",
        FollowRequest(run=run),
        RunStatus,
        deadline=None,
        on_item=lambda host, value: on_status(host, RunStatus.model_validate(value)),
    )


def steer(fleet: Fleet, run: str, action: str) -> list[Outcome[RunStatus]]:
    """Leave a wish (`pause`, `resume`, `stop`) with every host's extractor; what is in flight finishes."""
    return fleet.call("control", ControlRequest.model_validate({"run": run, "action": action}), RunStatus)


def _without_lost(fleet: Fleet, plan: Plan, delivered: Ranges) -> Plan:
    """The plan itself, or its next epoch where it counts on hosts that were not chosen."""
    chosen = {host.name for host in fleet.hosts}
    if all(share.host in chosen for share in plan.shares):
        return plan
    dataset = Path(plan.dataset)
    lengths = read_lengths(dataset, read_manifest(dataset))
    weights = {host.name: _weight(plan, host.name) for host in fleet.hosts}
    return replan(plan, lengths, weights, _done(fleet, plan), delivered)


def _weight(plan: Plan, host: str) -> float:
    """A planned host's own speed; a new one is taken for an average one."""
    share = plan.share(host)
    weights = [share.weight for share in plan.shares]
    return share.weight if share else sum(weights) / len(weights)


def _done(fleet: Fleet, plan: Plan) -> dict[str, Ranges]:
    """What each host has finished, for the balance alone: a host that cannot say counts as having nothing."""
    found: dict[str, set[int]] = {host.name: set() for host in fleet.hosts}
    records = read_manifest(Path(plan.dataset)).records

    def take(host: Host, value: dict[str, object]) -> None:
        rows = ShardBatch.model_validate(value).rows
        found[host.name].update(row.index for row in rows if 0 <= row.index < records)

    fleet.call("shards", ShardsRequest(run=plan.run), ShardsResult, on_item=take)
    return {host: ranges.from_indices(indices) for host, indices in found.items()}


def _folders(fleet: Fleet, plan: Plan, on_progress: OnProgress | None) -> tuple[dict[str, Path], Plan]:
    """Write the assignment folders; where the inventory changed since the last time, as a new epoch.

    A host keeps an epoch's assignment as it was given, so other settings need another number.
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
    """Tell the lost hosts that can be reached; returns the others with the reason."""
    lost = [host for host in fleet.inventory.hosts.values() if host.name in plan.lost]
    with fleet_of(fleet.inventory, lost) as others:
        request = FenceRequest(run=plan.run, epoch=plan.epoch)
        told = others.call("fence", request, RunStatus, deadline=FENCE_DEADLINE_SECONDS)
    failed = [outcome for outcome in told if outcome.error is not None and outcome.error.kind != UsageError.kind]
    return {outcome.host.name: str(outcome.error) for outcome in failed}
