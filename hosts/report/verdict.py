"""A run's verdict and sums, from its hosts' accounts or from the destination's copy of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hosts.commands.report import HostRecord
from hosts.money import Bill, bill, said, total
from remote.shared.messages.extract import Counts

WAITS = {
    "capture": "waiting for capture",
    "ramdisk": "waiting for RAM disk",
    "disk": "waiting for disk",
    "server": "waiting for a server",
    "paused": "paused",
}
PREFILL = "prefill"


@dataclass(frozen=True)
class Verdict:
    """The result of the run, or its present status."""

    word: str
    """`complete`, `complete with quarantined records`, `unfinished`, `unknown in part`."""
    sentence: str
    good: bool


def verdict(records: Sequence[HostRecord], planned: int | None) -> Verdict:
    """Return the verdict on the run; `planned` is the number of the dataset's records, None if no plan is known."""
    counts = totals(records)
    silent = [one.host for one in records if one.account is None]
    wanted = planned if planned is not None else counts.assigned
    done = counts.done + counts.freed
    holes = max(0, wanted - done - counts.quarantined)
    said = f"{done:,} of {wanted:,} records are done"
    if silent:
        said += f"; nothing is known about {', '.join(silent)}"
    if holes:
        said += f"; {holes:,} are open"
    if counts.quarantined:
        said += f"; {counts.quarantined:,} are quarantined"
    if silent and (holes or planned is None):
        return Verdict("unknown in part", said + ".", good=False)
    if holes:
        return Verdict("unfinished", said + ".", good=False)
    if counts.quarantined:
        return Verdict("complete with quarantined records", said + ".", good=False)
    return Verdict("complete", said + ".", good=True)


def totals(records: Sequence[HostRecord]) -> Counts:
    """Return the sum of all hosts' counts."""
    summed = Counts()
    for one in records:
        if one.account is not None:
            for field in Counts.model_fields:
                setattr(summed, field, getattr(summed, field) + getattr(one.account.counts, field))
    return summed


def causes(records: Sequence[HostRecord]) -> dict[str, int]:
    """Return the causes of the quarantined records, the most frequent first."""
    found: Counter[str] = Counter()
    for one in records:
        if one.account is not None:
            found.update(one.account.causes)
    return dict(found.most_common())


def worked_seconds(record: HostRecord) -> float | None:
    """Return the seconds for which the host worked on the run; None if there is no history."""
    return record.points[-1].values.get("worked") if record.points else None


def bill_of(record: HostRecord) -> Bill:
    """Return the run's cost on this host so far."""
    counts = record.account.counts if record.account is not None else Counts()
    return bill(record.cost_per_hour, worked_seconds(record), None, counts.tokens_done, counts.bytes_done)


def bill_of_all(records: Sequence[HostRecord]) -> Bill:
    """Return the run's cost on all hosts so far."""
    return total(bill_of(one) for one in records)


def known_dollars(records: Sequence[HostRecord]) -> str:
    """Return the known cost of the run, in words."""
    found = bill_of_all(records)
    if found.spent is not None:
        return said(found)
    known = [record for record in records if bill_of(record).spent is not None]
    if not known:
        return "unknown: no `cost_per_hour`, or no history"
    rest = ", ".join(record.host for record in records if record not in known)
    return f"{said(bill_of_all(known))}; unknown for {rest}"


def time_spent(record: HostRecord) -> dict[str, float]:
    """Return the seconds of work for each purpose; {} if there is no history.

    A run waits for capture while it also prefills, so these seconds can exceed the remaining seconds of prefill.
    """
    worked = worked_seconds(record)
    if worked is None:
        return {}
    last = record.points[-1].values
    spent = {name: last.get(f"waited.{cause}", 0.0) for cause, name in WAITS.items()}
    spent = {name: min(seconds, worked) for name, seconds in spent.items() if seconds > 0}
    return {PREFILL: max(0.0, worked - sum(spent.values())), **spent}
