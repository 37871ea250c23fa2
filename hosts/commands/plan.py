"""`inv plan`: asks every host, shares the dataset out, judges whether it fits, and writes the plan's file."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hosts.commands.runs import finished_records, held, holders
from hosts.errors import RoostError, UsageError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.money import Bill, bill, total
from hosts.plan.capacity import Forecast, RecordSize, Room, Share, forecast, remedies
from hosts.plan.lengths import read_lengths, read_manifest
from hosts.plan.plan import Plan, PlannedShare, keep_other, load, make_plan, save
from hosts.transport.backend import Backend
from remote.shared.messages.dataset import Manifest
from remote.shared.messages.extract import Rate, RateRequest, longest_record
from remote.shared.messages.plan import Prospect, ProspectRequest
from remote.shared.messages.run import DTYPES, RunIdentity, new_nonce
from remote.shared.shard.boundaries import boundaries_of
from remote.shared.transfer.destination import PACKED_SHARE

FASTEST_TOKENS_PER_SECOND = 1e9
PROSPECT_DEADLINE_SECONDS = 300.0
"""The first plan reads 4 MiB of every weight file of the model."""


@dataclass(frozen=True)
class Speed:
    """How fast a host extracts, and the source of that figure."""

    tokens_per_second: float | None
    source: str
    """The source in words: `the median of 214 minutes at work in the run 'kimi-1'`; empty if nothing is known."""
    measured: bool = False


@dataclass(frozen=True)
class Planned:
    """A plan with the bytes and hours of each host."""

    plan: Plan
    forecasts: list[Forecast]
    remedies: list[str]
    """What would help; empty if everything fits."""
    path: Path | None
    """The plan's file; None if the plan does not fit and was not written."""
    speeds: dict[str, Speed] = field(default_factory=dict)
    """The speed of each host with a share."""

    prices: dict[str, float | None] = field(default_factory=dict)
    """Each host's `cost_per_hour`."""

    @property
    def bill(self) -> Bill:
        """Return the run's cost, if each host is paid for until its own share is done."""
        return total(
            bill(self.prices.get(one.share.host), None if one.hours is None else one.hours * 3600, None,
                 one.share.tokens, int(one.disk_bytes))
            for one in self.forecasts
        )  # fmt: skip

    @property
    def fits(self) -> bool:
        return not any(one.problems for one in self.forecasts)

    @property
    def hours(self) -> float | None:
        """The hours until the last host is done; None if a speed is unknown."""
        hours = [one.hours for one in self.forecasts]
        return None if any(value is None for value in hours) else max(value or 0.0 for value in hours)


def plan(
    fleet: Fleet,
    dataset: Path,
    run: str,
    *,
    rate: float | None = None,
    freeing: bool = False,
    anew: bool = False,
    force: bool = False,
) -> Planned:
    """Plan `run` over the fleet's hosts; `rate` is each host's tokens per second.

    Raises the error of the first host that cannot be asked, because a plan without that host would give its share to
    the others. Raises UsageError if hosts disagree about the model, if a record is longer than the context, or if a run
    of this name was planned before. `anew` begins another run of that name; if records of the earlier run are finished,
    `force` is needed too. The earlier plan is kept under `plans/`, and epochs continue from it.
    """
    manifest = read_manifest(dataset)
    if manifest.kind == "prompts":
        raise UsageError(
            f"{dataset} holds prompts, which have no states yet.",
            remedy="Answer them with inv answer, pull the answers, and prepare them with inv prepare --input.",
        )
    lengths = read_lengths(dataset, manifest)
    path = fleet.inventory.kept.plan(run)
    earlier = earlier_epoch(fleet, run, path, anew=anew, force=force)
    leaders = fleet.narrowed([host for host in fleet.hosts if leads(host)])
    prospects = _of_nodes(fleet, prospects_of(leaders))
    identity = identity_of(run, leaders.hosts, prospects, manifest)
    _refuse_long(lengths, leaders.hosts, prospects)
    speeds = measured_rates(leaders, rate, "extract")
    rates = {host: speed.tokens_per_second for host, speed in speeds.items()}
    made = make_plan(str(dataset.expanduser().absolute()), identity, lengths, weights(rates), epoch=earlier + 1)
    contexts = {host.name: context_length(host, prospects[host.name]) for host in leaders.hosts}
    shares = [share.model_copy(update={"context_length": contexts[share.host]}) for share in made.shares]
    made = made.model_copy(update={"shares": shares}).signed()
    return _judged(made, leaders.hosts, prospects, speeds, path, freeing)


def _of_nodes(fleet: Fleet, prospects: dict[str, Prospect]) -> dict[str, Prospect]:
    """Return the prospects; for clusters with unlimited RAM, because a login host's RAM is not its nodes'."""
    unknown = {"ramdisk_total_bytes": 1 << 60, "memory_available_bytes": 1 << 60}
    return {
        name: found.model_copy(update=unknown) if name in fleet.inventory.cluster_hosts else found
        for name, found in prospects.items()
    }


def leads(host: Host) -> bool:
    """Return whether this host gets requests; if a server spans hosts, only its first host does."""
    return not host.servers or any(not entry.nodes or entry.nodes[0] == host.name for entry in host.servers)


def identity_of(run: str, hosts: list[Host], prospects: dict[str, Prospect], manifest: Manifest) -> RunIdentity:
    """Return the identity of a new run; raises UsageError if two hosts differ, or if a layer does not exist."""
    nonce = new_nonce()
    identities = {host.name: _identity(run, nonce, host, prospects[host.name], manifest) for host in hosts}
    first_host, first = next(iter(identities.items()))
    for name, identity in identities.items():
        for key in ("boundaries", "final", "hidden_size", "dtype"):
            one, other = getattr(first, key), getattr(identity, key)
            if one != other:
                raise UsageError(f"{first_host} and {name} differ in {key}: {one} and {other}.")
    one_model(hosts, prospects)
    return first


def one_model(hosts: list[Host], prospects: dict[str, Prospect]) -> Prospect:
    """Return the first host's prospect; raises UsageError if another host has another model."""
    first = prospects[hosts[0].name]
    for host in hosts:
        model = prospects[host.name].model
        if model.digest != first.model.digest:
            raise UsageError(
                f"{hosts[0].name} and {host.name} do not have the same model: the files in {first.model.path} there "
                f"have the digest {first.model.digest}, and those in {model.path} here {model.digest}.",
                remedy="Copy one host's model to the other host: config, tokenizer, chat template and weights count.",
            )
    return first


def _identity(run: str, nonce: str, host: Host, prospect: Prospect, manifest: Manifest) -> RunIdentity:
    model = prospect.model
    if not host.layers:
        raise UsageError(f"{host.name} has no `layers` in the inventory.", remedy="Name them, as in [3, 31, 59].")
    if manifest.vocab_size > model.vocab_size:
        raise UsageError(
            f"The dataset was made for a vocabulary of {manifest.vocab_size}, but the model on {host.name} has "
            f"{model.vocab_size} rows.",
            remedy="Prepare the dataset with this model's own tokenizer.",
        )
    return RunIdentity(
        name=run,
        nonce=nonce,
        dataset=manifest.digest,
        tokenizer=manifest.tokenizer,
        model=model.digest,
        model_path=model.path,
        boundaries=boundaries_of(host.layers, model.blocks, whose=f"the model on {host.name}"),
        final=host.final,
        hidden_size=model.hidden_size,
        dtype=_dtype(host, model.dtype),
    )


def _dtype(host: Host, of_weights: str) -> str:
    """Return the server's dtype: its `--dtype`, else that of the weights (SGLang runs float32 weights as float16)."""
    mode = host.modes.get("extract")
    asked = str(mode.flags.get("dtype", "auto")) if mode else "auto"
    return DTYPES.get(asked, "F16" if of_weights == "F32" else of_weights)


def context_length(host: Host, prospect: Prospect) -> int:
    """Return the context length of the host's servers in tokens."""
    return host.context_length or prospect.model.context_length


def weights(rates: dict[str, float | None]) -> dict[str, float]:
    """Return speeds as weights; a host with an unknown speed gets the mean of the others, or 1."""
    known = [rate for rate in rates.values() if rate]
    mean = sum(known) / len(known) if known else 1.0
    return {host: rate or mean for host, rate in rates.items()}


def prospects_of(fleet: Fleet) -> dict[str, Prospect]:
    """Return every host's prospect; raises the first error of a host."""
    if not fleet.hosts:
        raise UsageError("There is no host to plan for.", remedy="Name hosts with --hosts.")

    def request(host: Host) -> ProspectRequest:
        if host.model is None:
            raise UsageError(
                f"{host.name} has no `model` in the inventory.", remedy="Give the model's path on the host."
            )
        return ProspectRequest(model=host.model, dump_dir=host.dump_dir)

    outcomes = fleet.call("prospect", request, Prospect, deadline=PROSPECT_DEADLINE_SECONDS)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        raise _named(failed[0])
    return {outcome.host.name: outcome.result for outcome in outcomes}


def _named(outcome: Outcome[Prospect]) -> RoostError:
    """Return the host's own error with the host's name in front."""
    error = outcome.error
    assert error is not None
    error.message = f"{outcome.host.name}: {error.message}"
    return error


def measured_rates(fleet: Fleet, rate: float | None, task: Literal["extract", "answer"]) -> dict[str, Speed]:
    """Return each host's tokens per second: as given, else as measured in its runs, else from the inventory."""
    if rate:
        return {host.name: Speed(rate, "as given") for host in fleet.hosts}

    def measured(backend: Backend) -> Rate:
        try:
            return backend.call("rate", RateRequest(task=task), Rate)
        except RoostError:
            return Rate()

    return {outcome.host.name: _speed(outcome) for outcome in fleet.each(measured)}


def _speed(outcome: Outcome[Rate]) -> Speed:
    found, promised = outcome.value or Rate(), outcome.host.tokens_per_second
    if known := credible(found):
        return Speed(known, f"the median of {found.minutes:,} minutes at work in the run {found.run!r}", True)
    return Speed(promised, "the inventory's `tokens_per_second`" if promised else "")


def credible(rate: Rate) -> float:
    """Return the tokens per second that a host reports; 0 if the figure is impossible."""
    return rate.tokens_per_second if 0 < rate.tokens_per_second < FASTEST_TOKENS_PER_SECOND else 0.0


def earlier_epoch(fleet: Fleet, run: str, path: Path, *, anew: bool, force: bool) -> int:
    """Return the highest epoch of an earlier run of this name, 0 without one; raises UsageError if it must stay."""
    if path.exists() and not anew:
        before = load(path)
        raise UsageError(
            f"The run {before.run!r} has a plan already (epoch {before.epoch}, {path}).",
            remedy="Give the new run another name with --run, or plan this run again with --anew.",
        )
    found = holders(held(fleet, run), run)
    if found and not anew:
        first = found[0]
        raise UsageError(
            f"{first.host.name} holds a run {run!r} already, planned by {first.assignment.planned_by or 'somebody'}.",
            remedy=f"Give the new run another name with --run, or take that plan with inv runs --take {run}.",
        )
    finished = {one.host.name: done for one in found if (done := finished_records(one.run))}
    if finished and not force:
        there = ", ".join(f"{done:,} on {host}" for host, done in finished.items())
        raise UsageError(
            f"The run {run!r} has finished records ({there}), which would not belong to the newly planned run.",
            remedy="Give the new run another name with --run; or pull what you need, then add --anew --force.",
        )
    epochs = [one.assignment.epoch for one in found]
    return max([*epochs, load(path).epoch if path.exists() and _is_plan(path) else 0], default=0)


def _is_plan(path: Path) -> bool:
    """Return whether the file is a plan that this version reads; any other file is kept under `plans/` too."""
    try:
        load(path)
    except UsageError:
        return False
    return True


def _refuse_long(lengths: array[int], hosts: list[Host], prospects: dict[str, Prospect]) -> None:
    """Raise UsageError for records longer than the servers admit; the answer and SGLang need some of the context."""
    admitted = longest_record(min(context_length(host, prospects[host.name]) for host in hosts))
    long = [index for index, length in enumerate(lengths) if length > admitted]
    if long:
        raise UsageError(
            f"{len(long)} {'record is' if len(long) == 1 else 'records are'} longer than the {admitted} tokens that "
            f"the servers admit; the first is record {long[0]} with {lengths[long[0]]}.",
            remedy=f"Prepare the dataset with --max-len {admitted}, or raise `context_length`.",
        )


def _judged(
    made: Plan,
    hosts: list[Host],
    prospects: dict[str, Prospect],
    speeds: dict[str, Speed],
    path: Path,
    freeing: bool,
) -> Planned:
    size = RecordSize.of(made.identity)
    by_name = {host.name: host for host in hosts}
    forecasts = [
        forecast(
            _share(share, speeds),
            size,
            room(by_name[share.host], prospects[share.host], made.identity.dtype),
            freeing=freeing,
        )
        for share in made.shares
    ]
    if any(one.problems for one in forecasts):
        return Planned(made, forecasts, remedies(forecasts, size, freeing=freeing), None, speeds)
    keep_other(path, made)
    save(made, path)
    return Planned(made, forecasts, [], path, speeds, {host.name: host.cost_per_hour for host in hosts})


def _share(share: PlannedShare, speeds: dict[str, Speed]) -> Share:
    return Share(share.host, share.records, share.tokens, share.longest, speeds[share.host].tokens_per_second)


def room(host: Host, prospect: Prospect, dtype: str) -> Room:
    """Return the host's room for states of this dtype, from the inventory and the host's disks."""
    return Room(
        disk_free_bytes=prospect.disk_free_bytes,
        min_free_bytes=int(host.min_free),
        ramdisk_bytes=min(prospect.ramdisk_total_bytes, prospect.memory_available_bytes),
        high_water_bytes=int(host.dump_high_water),
        packed_share=PACKED_SHARE if host.store == "compressed" and dtype == "BF16" else 1.0,
    )
