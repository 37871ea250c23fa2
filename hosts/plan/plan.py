"""A run's plan: which host does which records, in which epoch. It is a JSON file beside the inventory.

Pure apart from `load` and `save`. Made by `inv plan`, read by `inv extract`, made again when a host is lost.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from hosts.errors import UsageError, nearest
from hosts.plan.balance import level, split, tokens_of
from hosts.plan.lengths import read_manifest
from hosts.typed import operator
from remote.shared import ranges as sets
from remote.shared.files import write_whole
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity
from remote.shared.paths import safe_name


class PlannedShare(Message):
    """One host's records."""

    host: str
    weight: float
    """The host's tokens per second if known, else 1."""
    ranges: Ranges
    records: int
    tokens: int
    longest: int
    """Tokens of the longest record."""
    context_length: int = 0
    """The context length of the host's servers in tokens; 0 until it is known."""
    epoch: int
    """The epoch in the host's assignment, which is the plan's."""


class Plan(Message):
    """A run's plan. Every record of the dataset is in exactly one share, or in `delivered`."""

    identity: RunIdentity
    dataset: str
    """The dataset's folder on the laptop."""
    records: int
    """The number of records in the dataset."""
    epoch: int
    """Rises with every re-plan; a host with an older epoch starts no new record."""
    shares: list[PlannedShare]
    lost: list[str] = Field(default_factory=list)
    """Hosts of an earlier epoch that were lost: they deliver what they have and start nothing."""
    delivered: Ranges = Field(default_factory=list)
    """Records that were at the destination when this epoch was made; they are in no share."""
    planned_by: str = ""
    """The person who made this epoch, as `user@laptop`."""
    planned_at: float = 0.0
    concurrency: int | None = None
    """Of answers: requests out at once on each server; None for what the server says."""

    @property
    def digest(self) -> str:
        """32 hex digits over the plan's decisions, which differ if two laptops re-plan independently."""
        decided = self.model_dump(mode="json", exclude={"dataset", "planned_by", "planned_at"}, exclude_none=True)
        content = json.dumps(decided, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def signed(self) -> Plan:
        """Return the plan with this operator and the present time."""
        return self.model_copy(update={"planned_by": operator(), "planned_at": time.time()})

    @property
    def run(self) -> str:
        """The run's name."""
        return self.identity.name

    @property
    def task(self) -> Literal["extract", "answer"]:
        """The task that makes the run's records, and the verb that hosts are started with."""
        return "extract" if self.identity.answers is None else "answer"

    def share(self, host: str) -> PlannedShare | None:
        """Return the host's share, or None."""
        return next((share for share in self.shares if share.host == host), None)


def make_plan(
    dataset: str, identity: RunIdentity, lengths: Sequence[int], weights: dict[str, float], *, epoch: int = 1
) -> Plan:
    """Return a plan that gives every record to a host in `weights`; raises UsageError without hosts or records."""
    safe_name(identity.name, "run name")
    if not weights:
        raise UsageError("There is no host to plan for.")
    if not lengths:
        raise UsageError("The dataset is empty.")
    parts = split(lengths, [(0, len(lengths))], list(weights.values()))
    shares = [
        _share(host, weight, part, lengths, epoch)
        for (host, weight), part in zip(weights.items(), parts, strict=True)
        if part
    ]
    return Plan(identity=identity, dataset=dataset, records=len(lengths), epoch=epoch, shares=shares)


def replan(
    plan: Plan,
    lengths: Sequence[int],
    weights: dict[str, float],
    done: dict[str, Ranges],
    delivered: Ranges | None = None,
    *,
    relieve: bool = False,
) -> Plan:
    """Return the next epoch for the hosts in `weights` (some of the plan's, or new ones).

    A host that stays keeps its records. With `relieve`, a host that would finish after the others gives up the last of
    its open records, so that an added host gets a share. The records of lost hosts are spread so that all hosts finish
    together, except records in `delivered`, which are at the destination already.
    `done` names the records that each host has finished. Records that a lost host finished but did not deliver are done
    again; if that host returns, the destination keeps the record that came first.
    """
    if not weights:
        raise UsageError("There is no host left to plan for.")
    arrived = sets.union(plan.delivered, delivered or [])
    own = {host: sets.difference(_ranges(plan, host), arrived) for host in weights}
    if relieve:
        own = _relieved(own, weights, done, lengths)
    pool = sets.difference([(0, len(lengths))], sets.union(arrived, *own.values()))
    to_do = [float(tokens_of(lengths, sets.difference(own[host], done.get(host, [])))) for host in weights]
    extra = level(to_do, list(weights.values()), tokens_of(lengths, pool))
    parts = split(lengths, pool, extra) if pool else [[] for _ in weights]
    epoch = plan.epoch + 1
    shares = [
        _share(host, weight, sets.union(own[host], part), lengths, epoch)
        for (host, weight), part in zip(weights.items(), parts, strict=True)
        if own[host] or part
    ]
    contexts = {share.host: share.context_length for share in plan.shares}
    shortest = min(contexts.values(), default=0)
    shares = [share.model_copy(update={"context_length": contexts.get(share.host, shortest)}) for share in shares]
    lost = {*plan.lost, *(share.host for share in plan.shares)} - set(weights)
    return plan.model_copy(update={"epoch": epoch, "shares": shares, "lost": sorted(lost), "delivered": arrived})


def _relieved(
    own: dict[str, Ranges], weights: dict[str, float], done: dict[str, Ranges], lengths: Sequence[int]
) -> dict[str, Ranges]:
    """Return each host's records without the open records that it would still have when the others are done."""
    to_do = {host: sets.difference(ranges, done.get(host, [])) for host, ranges in own.items()}
    tokens = {host: tokens_of(lengths, ranges) for host, ranges in to_do.items()}
    seconds = sum(tokens.values()) / sum(weights.values())
    kept: dict[str, Ranges] = {}
    for host, ranges in own.items():
        keeps = min(float(tokens[host]), seconds * weights[host])
        surplus = split(lengths, to_do[host], [keeps, tokens[host] - keeps])[1] if tokens[host] > keeps else []
        kept[host] = sets.difference(ranges, surplus)
    return kept


def _ranges(plan: Plan, host: str) -> Ranges:
    share = plan.share(host)
    return share.ranges if share else []


def _share(host: str, weight: float, ranges: Ranges, lengths: Sequence[int], epoch: int) -> PlannedShare:
    return PlannedShare(
        host=host,
        weight=weight,
        ranges=ranges,
        records=sets.count(ranges),
        tokens=tokens_of(lengths, ranges),
        longest=max(max(lengths[start:stop]) for start, stop in ranges),
        epoch=epoch,
    )


def dataset_of(plan: Plan) -> Path | None:
    """Return the folder of the plan's dataset on this laptop, or None if there is no dataset.

    Raises UsageError if the folder holds another dataset.
    """
    folder = Path(plan.dataset).expanduser()
    if not plan.dataset or not (folder / "manifest.json").exists():
        return None
    held = read_manifest(folder).digest
    if held != plan.identity.dataset:
        raise UsageError(
            f"{folder} holds the dataset {held}, but the run {plan.run!r} was planned for {plan.identity.dataset}.",
            remedy="Put that dataset back there, or plan the present dataset as a run with another name.",
        )
    return folder


def save(plan: Plan, path: Path) -> None:
    """Write the plan as a whole."""
    write_whole(path, plan.model_dump_json(indent=1).encode())


def keep_other(path: Path, plan: Plan) -> None:
    """Keep the plan at `path` under `plans/` before `plan` replaces it, unless it is an earlier epoch of `plan`.

    This preserves another run of the same name, and another laptop's decisions.
    """
    if not path.exists():
        return
    try:
        before = load(path)
        name = f"{before.identity.nonce}-{before.epoch}.json"
        same = before.identity == plan.identity and (before.epoch < plan.epoch or before.digest == plan.digest)
    except UsageError:
        name, same = f"unreadable-{path.stat().st_mtime_ns}.json", False
    if not same:
        write_whole(path.parent / "plans" / name, path.read_bytes())


def load(path: Path) -> Plan:
    """Read a plan; raises UsageError if it is missing or invalid."""
    try:
        return Plan.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        runs = [folder.name for folder in path.parent.parent.glob("*") if folder != path.parent]
        remedy = nearest(path.parent.name, runs) or "Make one with inv plan."
        raise UsageError(f"There is no plan at {path}.", remedy=remedy) from error
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"The plan {path} could not be read: {reason}.", remedy="Make it again with inv plan."
        ) from error
