"""`inv bench`: measures each host's server, keeps the results and compares two of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hosts.bench.compare import Comparison, compare, differences, pool
from hosts.bench.results import BenchResults
from hosts.bench.serving import OneServer, each_to_its_end
from hosts.errors import UsageError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.inventory.servers import find_mode
from hosts.transport.backend import Backend
from remote.shared.messages.bench import PROFILES, BenchRequest, BenchResult, Profile
from remote.shared.messages.envelope import Progress
from remote.shared.paths import safe_name

DEADLINE_MARGIN_SECONDS = 120.0


def profiles(text: str) -> list[Profile]:
    """Return the profiles named in `text`, such as `single,prefill`, or all if it is empty; raises UsageError."""
    wanted = [word.strip() for word in text.split(",") if word.strip()] or list(PROFILES)
    for word in wanted:
        if word not in PROFILES:
            raise UsageError(f"There is no profile {word!r}.", remedy=f"Profiles: {', '.join(PROFILES)}.")
    return [profile for profile in PROFILES if profile in wanted]


def bench(
    fleet: Fleet,
    request: BenchRequest,
    *,
    mode: str,
    label: str,
    on_progress: Callable[[Host, Progress], None],
    note: Callable[[str], None],
) -> list[Outcome[BenchResult]]:
    """Measure on every host at once and keep each result under `label`.

    With `mode`, a server that runs in another mode is restarted in this one, and restored after the measurement.
    """
    kept = BenchResults(fleet.inventory.kept.bench)
    if label:
        safe_name(label, "label")
    for host in fleet.hosts if mode else []:
        find_mode(host, mode)

    def measure(backend: Backend) -> BenchResult:
        return backend.call(
            "bench",
            request,
            BenchResult,
            deadline=request.deadline_seconds + DEADLINE_MARGIN_SECONDS,
            on_progress=lambda line: on_progress(backend.host, line),
        )

    def measure_in_mode(backend: Backend) -> BenchResult:
        with OneServer(backend, request.server).serving(mode):
            return measure(backend)

    outcomes = each_to_its_end(fleet, measure_in_mode, note) if mode else fleet.each(measure)
    for outcome in outcomes:
        if outcome.ok:
            outcome.result.host, outcome.result.label = outcome.host.name, label
            outcome.result.label = kept.save(outcome.result).split("/", 1)[1]
    return outcomes


def compare_kept(folder: Path, first: str, second: str) -> tuple[list[Comparison], list[str]]:
    """Compare two kept results by name, or two sets by pattern; also return the circumstances that differ."""
    kept = BenchResults(folder)
    one, two = pool(kept.load_all(first)), pool(kept.load_all(second))
    return compare(one, two), differences(one, two)
