"""`inv pull`: brings verified shards into a folder that a trainer loads as it is. Runs on the laptop.

For a folder or a bucket, the engine runs here. For a folder on a host it runs there, in the verb `fetch`, and the bytes
never pass through the laptop.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hosts.commands.moves import plan_as_moved
from hosts.commands.report import keep_all
from hosts.commands.runs import plan_for
from hosts.errors import ProtocolError, RoostError, UsageError
from hosts.fleet import Fleet, Outcome, fleet_of
from hosts.plan.lengths import read_lengths, read_manifest
from hosts.plan.plan import Plan, dataset_of
from hosts.pull.bucket import destination_of, is_bucket
from hosts.pull.sources import Place, laptop_origin, place_of, source_for_host
from hosts.transport.backend import Backend
from hosts.transport.push import push
from remote.shared import ranges
from remote.shared.errors import told
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.extract import ShardsRequest, ShardsResult
from remote.shared.messages.hello import HelloRequest, HelloResult
from remote.shared.messages.transfer import (
    DestinationManifest,
    FetchNews,
    FetchRequest,
    FetchResult,
    HostTally,
    Store,
    Wish,
)
from remote.shared.transfer.bounds import Bounds
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.engine import Engine, Tallies, look
from remote.shared.transfer.manifest import opened_for, refuse_other, refuse_split, write_manifest
from remote.shared.transfer.origin import Asked, listed

Watch = Callable[[Tallies], Callable[[], None]]
"""A function that starts to show the tallies, and returns a function that ends that."""


@dataclass
class Pulled:
    """The result of a pull."""

    run: str
    destination: str
    outcomes: list[Outcome[HostTally]]
    manifest: DestinationManifest | None = None
    missing: list[tuple[int, int]] = field(default_factory=list)
    """The ranges of the dataset's indices that are not at the destination."""
    is_over: bool = False
    """Whether every host of the plan answered that it has done its share, so that no further record will come."""

    @property
    def missing_records(self) -> int:
        return sum(stop - start for start, stop in self.missing)

    @property
    def nobody_brings_the_rest(self) -> bool:
        """Whether records are missing after the pull although every host has done its share."""
        return self.is_over and self.manifest is not None and bool(self.missing)

    @property
    def failed_records(self) -> int:
        """The number of offered records that could not be delivered."""
        return sum(len(outcome.value.failed) for outcome in self.outcomes if outcome.value)


@dataclass(frozen=True)
class _Job:
    """What a pull to any kind of destination needs."""

    fleet: Fleet
    wish: Wish
    plan: Plan
    dataset: Path | None
    """The dataset's folder, if it is on this laptop."""
    bounds: Bounds

    def origin(self, backend: Backend, folder: Path) -> Asked:
        return laptop_origin(backend, self.plan, self.bounds, folder)

    def is_over(self, outcomes: list[Outcome[HostTally]]) -> bool:
        """Whether every host with a share answered that it has done it."""
        done = {one.host.name for one in outcomes if one.value is not None and one.value.status == "complete"}
        return bool(self.plan.shares) and all(share.host in done for share in self.plan.shares)

    def judged(self, outcomes: list[Outcome[HostTally]]) -> list[Outcome[HostTally]]:
        """Return the outcomes; a host without a share that does not know the run has nothing to bring, not an error."""
        return [
            Outcome(outcome.host, HostTally(has_share=False))
            if outcome.error is not None
            and outcome.error.kind == UsageError.kind
            and not self.plan.share(outcome.host.name)
            else outcome
            for outcome in outcomes
        ]


def pull(fleet: Fleet, wish: Wish, to: str, watch: Watch, store: Store = "plain") -> Pulled:
    """Pull a run's finished records from every host into `to`: a folder here, a bucket, or `HOST:FOLDER`.

    An error on one host becomes that host's outcome.
    """
    job = _job(fleet, wish)
    place = place_of(fleet, to)
    if place is not None:
        return _fetch(job, place, watch, store, dry=False)
    identity, records = job.plan.identity, job.plan.records
    there = destination_of(to, store, fleet.inventory.kept.spools, identity)
    if wish.free:
        refuse_other(there, identity)
        refuse_split(there, identity.name, _elsewhere(job))
    with opened_for(there, identity, records) as destination:
        if wish.free:
            destination.refuse_freeing()
        if job.dataset is not None:
            destination.place_dataset(job.dataset)
        outcomes = _bring(job, destination, watch)
        manifest = write_manifest(destination, identity, records)
        if not is_bucket(to):
            keep_all(fleet.narrowed([outcome.host for outcome in outcomes if outcome.ok]), wish.run, Path(to))
        missing = destination.missing(records)
        return Pulled(wish.run, to, job.judged(outcomes), manifest, missing, job.is_over(outcomes))


def dry_run(fleet: Fleet, wish: Wish, to: str) -> Pulled:
    """Return what a pull would bring; writes nothing, except a missing payload on a host."""
    job = _job(fleet, wish)
    place = place_of(fleet, to)
    if place is not None:
        return _fetch(job, place, lambda tallies: lambda: None, "plain", dry=True)
    destination = destination_of(to, "plain", fleet.inventory.kept.spools, job.plan.identity)
    if not refuse_other(destination, job.plan.identity) and not is_bucket(to):
        return Pulled(wish.run, to, _look(job, None), None, [(0, job.plan.records)])
    with destination:
        return Pulled(wish.run, to, _look(job, destination), None, destination.missing(job.plan.records))


def _elsewhere(job: _Job) -> Ranges:
    """Return the delivered records that no chosen host has any more: freed there, or delivered according to the plan.

    A freed record counts only if it is in the host's share, because repairing a folder takes records out of a lost
    host's share, or out of their host's ledger. A host that cannot be asked counts as having freed nothing; the pull
    names it.
    """

    plan = plan_as_moved(job.fleet, job.plan)

    def asked(backend: Backend) -> tuple[Ranges, Ranges]:
        identity = job.plan.identity
        counts = backend.call("shards", ShardsRequest(identity=identity, limit=0), ShardsResult).counts
        if not counts.freed and not job.plan.delivered:
            return [], []
        every = _listed(job, backend, ShardsRequest(identity=identity, freed=True))
        held = _listed(job, backend, ShardsRequest(identity=identity))  # asked second: has the newest records
        share = plan.share(backend.host.name)
        return ranges.intersection(ranges.difference(every, held), share.ranges if share else []), held

    answers = [outcome.result for outcome in job.fleet.each(asked) if outcome.ok]
    held = ranges.union(*(held for _, held in answers))
    return ranges.difference(ranges.union(job.plan.delivered, *(freed for freed, _ in answers)), held)


def _listed(job: _Job, backend: Backend, request: ShardsRequest) -> Ranges:
    """Return the records that a host lists; raises OfferError for rows that cannot belong to this run."""
    return ranges.from_indices(row.index for row in listed(backend.call, job.bounds, request).rows)


def _bring(job: _Job, destination: Destination, watch: Watch) -> list[Outcome[HostTally]]:
    """Run the engine in this process, with a thread for each host."""
    with (
        tempfile.TemporaryDirectory(prefix="roost-ssh-") as folder,
        Engine(destination, job.wish, job.bounds) as engine,
    ):
        engine.enlist([host.name for host in job.fleet.hosts])
        end = watch(engine.tallies)
        try:
            return job.fleet.each(lambda backend: engine.bring(job.origin(backend, Path(folder))))
        finally:
            end()


def _look(job: _Job, destination: Destination | None) -> list[Outcome[HostTally]]:
    with tempfile.TemporaryDirectory(prefix="roost-ssh-") as folder:
        return job.judged(job.fleet.each(lambda backend: look(job.origin(backend, Path(folder)), destination)))


def _fetch(job: _Job, place: Place, watch: Watch, store: Store, *, dry: bool) -> Pulled:
    """Run the engine on the destination host; the laptop places payload and dataset, and shows the progress."""
    reached = job.fleet.each(lambda backend: backend.call("hello", HelloRequest(), HelloResult))
    pushed = f"{place.folder.rstrip('/')}/roost/dataset-{job.plan.identity.dataset[:16]}"
    hosts = [outcome.host for outcome in reached if outcome.ok or job.wish.follow]
    request = FetchRequest(
        to=place.folder,
        dataset=pushed if job.dataset is not None else "",
        identity=job.plan.identity,
        records=job.plan.records,
        lengths=list(job.bounds.lengths),
        store=store,
        wish=job.wish,
        dry_run=dry,
        elsewhere=_elsewhere(job) if job.wish.free and not dry else [],
        sources=[source_for_host(host, job.plan, job.bounds, place.host) for host in hosts],
    )
    tallies: Tallies = {host.name: HostTally() for host in hosts}
    errors: dict[str, RoostError] = {}

    def hear(value: dict[str, object]) -> None:
        news = FetchNews.model_validate(value)
        if news.name not in tallies:
            raise ProtocolError(
                f"The host reports on {news.name!r}, but it was not asked to pull from that host."[:500]
            )
        tallies[news.name] = news.tally
        if news.kind:
            errors[news.name] = told(news.kind, news.error, news.remedy)

    end = watch(tallies)
    try:
        with fleet_of(job.fleet.inventory, [place.host]) as one:
            backend = one.backend(place.host)
            if job.dataset is not None and not dry:
                push(backend, job.dataset, pushed, shared=True)
            result = backend.call("fetch", request, FetchResult, deadline=None, on_item=hear)
    finally:
        end()
    outcomes = [
        Outcome(outcome.host, None, outcome.error)
        if outcome.host not in hosts
        else Outcome(outcome.host, None, errors[outcome.host.name])
        if outcome.host.name in errors
        else Outcome(outcome.host, tallies[outcome.host.name])
        for outcome in reached
    ]
    over = job.is_over(outcomes)
    return Pulled(job.wish.run, str(place), job.judged(outcomes), result.manifest, result.missing, over)


def _job(fleet: Fleet, wish: Wish) -> _Job:
    plan = plan_for(fleet, wish.run)
    dataset = dataset_of(plan)
    lengths = read_lengths(dataset, read_manifest(dataset)) if dataset is not None else ()
    return _Job(fleet, wish, plan, dataset, Bounds(plan.identity, plan.records, lengths))
