"""`inv pull`: verified shards come back into a folder that a trainer loads as it is. Runs on the laptop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hosts.errors import UsageError
from hosts.fleet import Fleet, Outcome, fleet_of
from hosts.plan.plan import Plan, dataset_of, load
from hosts.pull.bucket import destination_of, is_bucket
from hosts.pull.direct import DirectPull, Place, place_of
from hosts.pull.pull import HostTally, Pull, Tallies, Wish, missing_of
from remote.shared.messages.transfer import DestinationManifest, Store
from remote.shared.transfer.dataset import gaps, place_dataset
from remote.shared.transfer.manifest import opened_for, refuse_other, write_manifest

Watch = Callable[[Tallies], Callable[[], None]]
"""Given the tallies, starts to show them and returns how to end that."""


@dataclass
class Pulled:
    """What a pull came to."""

    run: str
    destination: str
    outcomes: list[Outcome[HostTally]]
    manifest: DestinationManifest | None = None
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of indices of the dataset that are not at the destination."""

    @property
    def missing_records(self) -> int:
        return sum(stop - start for start, stop in self.missing)

    @property
    def failed_records(self) -> int:
        """Records that were offered and could not be brought here right."""
        return sum(len(o.value.report.failed) for o in self.outcomes if o.value and o.value.report)


def pull(fleet: Fleet, wish: Wish, to: str, watch: Watch, store: Store = "plain") -> Pulled:
    """Pull a run's finished records from every host into `to`: a folder here, a bucket, or `HOST:FOLDER`.

    What goes wrong on one host is its outcome.
    """
    plan = _plan(fleet, wish)
    place = place_of(fleet, to)
    if place is not None:
        return _pull_to_host(fleet, place, wish, plan, watch, store)
    records, dataset = plan.records, dataset_of(plan)
    with opened_for(
        destination_of(to, store, fleet.inventory.kept.spools, plan.identity), plan.identity, records
    ) as destination:
        if wish.free:
            destination.refuse_freeing()
        if dataset is not None:
            place_dataset(dataset, destination)
        job = Pull(fleet, destination, wish, records)
        end = watch(job.tallies)
        try:
            outcomes = job.run()
        finally:
            end()
        manifest = write_manifest(destination, plan.identity, records)
        return Pulled(wish.run, to, _judged(outcomes, plan), manifest, gaps(destination.ledger.indices(), records))


def _pull_to_host(fleet: Fleet, place: Place, wish: Wish, plan: Plan, watch: Watch, store: Store) -> Pulled:
    with fleet_of(fleet.inventory, [place.host]) as one:
        job = DirectPull(fleet, one.backend(place.host), place.folder, wish, plan, store)
        end = watch(job.tallies)
        try:
            outcomes, result = job.run()
        finally:
            end()
    return Pulled(wish.run, str(place), _judged(outcomes, plan), result.manifest, result.missing)


def dry_run(fleet: Fleet, wish: Wish, to: str) -> Pulled:
    """What a pull would bring; writes nothing on the hosts (but the payload, where it is missing)."""
    plan = _plan(fleet, wish)
    place = place_of(fleet, to)
    if place is not None:
        with fleet_of(fleet.inventory, [place.host]) as one:
            outcomes, result = DirectPull(fleet, one.backend(place.host), place.folder, wish, plan).look()
        return Pulled(wish.run, to, _judged(outcomes, plan), None, result.missing)
    records = plan.records
    destination = destination_of(to, "plain", fleet.inventory.kept.spools, plan.identity)
    if not refuse_other(destination, plan.identity) and not is_bucket(to):
        outcomes = missing_of(fleet, None, wish.run, records)
        return Pulled(wish.run, to, _judged(outcomes, plan), None, [(0, records)])
    with destination:
        outcomes = missing_of(fleet, destination, wish.run, records)
        return Pulled(wish.run, to, _judged(outcomes, plan), None, gaps(destination.ledger.indices(), records))


def _judged(outcomes: list[Outcome[HostTally]], plan: Plan) -> list[Outcome[HostTally]]:
    """A host that does not know the run, and that the plan gave no share, has nothing to bring: no failure."""
    return [
        Outcome(outcome.host, HostTally(has_share=False))
        if outcome.error is not None and outcome.error.kind == UsageError.kind and not plan.share(outcome.host.name)
        else outcome
        for outcome in outcomes
    ]


def _plan(fleet: Fleet, wish: Wish) -> Plan:
    return load(fleet.inventory.kept.plan(wish.run))
