"""`inv verify --repair`: queues exactly the wrong records again, on the hosts whose shares they are in.

Runs on the laptop. The host deletes its shard first, then the destination deletes its copy. If this is interrupted, or
if a host cannot be reached, the next verification finds the same records wrong again.
"""

from __future__ import annotations

from dataclasses import dataclass

from hosts.commands.extract import needs_dataset
from hosts.commands.moves import plan_as_moved
from hosts.errors import RoostError, UsageError
from hosts.fleet import Fleet, Outcome
from hosts.plan.lengths import read_lengths, read_manifest
from hosts.plan.plan import Plan, dataset_of, replan, save
from hosts.transport.backend import Backend
from remote.shared import ranges as sets
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.extract import IndicesRequest, IndicesResult
from remote.shared.messages.verify import ForgetRequest, ForgetResult, VerifyResult


@dataclass(frozen=True)
class Queued:
    """The wrong records of one host, and whether they are queued again."""

    host: str
    records: Ranges
    error: RoostError | None = None
    """Why the host could not queue the records."""


def repair_run(fleet: Fleet, plan: Plan, outcomes: list[Outcome[VerifyResult]], *, dry_run: bool) -> list[Queued]:
    """Queue each host's wrong records again on that host; with `dry_run`, only return them."""
    every = [(0, plan.records)]
    wrong = {o.host.name: sets.intersection(sets.union(o.result.requeue), every) for o in outcomes if o.ok}
    return _queue(fleet, plan, wrong, dry_run=dry_run)


def repair_folder(
    fleet: Fleet, plan: Plan, backend: Backend, folder: str, wrong: Ranges, *, dry_run: bool
) -> list[Queued]:
    """Queue a destination's wrong records on the hosts of the plan, and remove them from the destination.

    The next `inv extract` makes exactly these records again, and the next `inv pull` brings them. Records of a host
    that was lost meanwhile are in no share; the plan's next epoch gives them to other hosts. Raises UsageError if a
    host that must make some of them was not chosen.
    """
    plan = _given_back(fleet, plan_as_moved(fleet, plan), wrong, dry_run=dry_run)
    theirs = {share.host: sets.intersection(share.ranges, wrong) for share in plan.shares}
    chosen = {host.name for host in fleet.hosts}
    absent = sorted(host for host, records in theirs.items() if records and host not in chosen)
    if absent:
        raise UsageError(
            f"Wrong records are in the share of {', '.join(absent)}, which was not chosen.",
            remedy="Name every host of the run, or leave out --hosts.",
        )
    queued = _queue(fleet, plan, theirs, dry_run=dry_run)
    done = sets.union(*(one.records for one in queued if one.error is None))
    if done and not dry_run:
        request = ForgetRequest(folder=folder, identity=plan.identity, ranges=done)
        backend.call("forget", request, ForgetResult, deadline=None)
    return queued


def _given_back(fleet: Fleet, plan: Plan, wrong: Ranges, *, dry_run: bool) -> Plan:
    """Return the plan, or its next epoch if some wrong records are in no host's share because they were delivered."""
    orphans = sets.intersection(plan.delivered, wrong)
    if not orphans:
        return plan
    known = {share.host: share.weight for share in plan.shares}
    mean = sum(known.values()) / len(known) if known else 1.0
    weights = known or {host.name: mean for host in fleet.hosts if host.name not in plan.lost}
    dataset = dataset_of(plan)
    if dataset is None:
        raise needs_dataset(plan, f"{sets.count(orphans):,} wrong records are in no host's share")
    open_again = plan.model_copy(update={"delivered": sets.difference(plan.delivered, orphans)})
    made = replan(open_again, read_lengths(dataset, read_manifest(dataset)), weights, {}).signed()
    if not dry_run:
        save(made, fleet.inventory.kept.plan(plan.run))
    return made


def _queue(fleet: Fleet, plan: Plan, wrong: dict[str, Ranges], *, dry_run: bool) -> list[Queued]:
    hosts = fleet.narrowed([host for host in fleet.hosts if wrong.get(host.name)])
    if dry_run:
        return [Queued(host.name, wrong[host.name]) for host in hosts.hosts]

    def requeue(backend: Backend) -> IndicesResult:
        request = IndicesRequest(
            identity=plan.identity, epoch=plan.epoch, indices=list(sets.indices(wrong[backend.host.name]))
        )
        return backend.call("requeue", request, IndicesResult)

    return [Queued(done.host.name, wrong[done.host.name], done.error) for done in hosts.each(requeue)]
