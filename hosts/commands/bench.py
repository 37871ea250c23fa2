"""`inv bench`: measure each host's server, keep the results, compare two of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hosts.bench.compare import Comparison, compare, differences
from hosts.bench.results import BenchResults
from hosts.errors import UsageError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from remote.messages.bench import PROFILES, BenchRequest, BenchResult, Profile
from remote.messages.envelope import Progress

DEADLINE_MARGIN_SECONDS = 120.0


def profiles(text: str) -> list[Profile]:
    """`single,prefill` as profiles; all of them for an empty text. Raises UsageError for another word."""
    wanted = [word.strip() for word in text.split(",") if word.strip()] or list(PROFILES)
    for word in wanted:
        if word not in PROFILES:
            raise UsageError(f"There is no profile {word!r}.", remedy=f"Profiles: {', '.join(PROFILES)}.")
    return [profile for profile in PROFILES if profile in wanted]


def bench(
    fleet: Fleet, request: BenchRequest, *, label: str, on_progress: Callable[[Host, Progress], None]
) -> list[Outcome[BenchResult]]:
    """Measure on every host at once and keep each result under `label`."""
    kept = BenchResults(fleet.inventory.path.parent)
    deadline = request.deadline_seconds + DEADLINE_MARGIN_SECONDS
    outcomes = fleet.call("bench", request, BenchResult, deadline=deadline, on_progress=on_progress)
    for outcome in outcomes:
        if outcome.ok:
            outcome.result.host, outcome.result.label = outcome.host.name, label
            outcome.result.label = kept.save(outcome.result).split("/", 1)[1]
    return outcomes


def compare_kept(root: Path, first: str, second: str) -> tuple[list[Comparison], list[str]]:
    """Compare two kept results by name; also what else differs between them."""
    kept = BenchResults(root)
    one, two = kept.load(first), kept.load(second)
    return compare(one, two), differences(one, two)
