"""Tasks for data on the hosts' disks: `clean`, `compress`, `unpack`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from invoke.context import Context

from hosts.commands.prepare import local_path
from hosts.commands.runs import plan_for
from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.errors import UsageError
from hosts.fleet import Outcome
from hosts.inventory.model import Host
from hosts.tasks.clusters import ONE_JOB, Job, job_or
from hosts.tasks.places import PLACES, demand, places, show_places
from hosts.tasks.session import DRY_RUN, JSON, TARGET, WAIT, chosen_run, finish, roost_task, session
from hosts.units import duration, size
from remote.shared.messages.clean import CleanRequest, CleanResult
from remote.shared.messages.codec import CompressRequest, CompressResult, UnpackRequest, UnpackResult

DAY_SECONDS = 86_400.0
CLEAN_DEADLINE_SECONDS = 3600.0
"""Removing millions of shards from a network file system takes long."""


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    WAIT,
    named="names of runs, payloads or servers to remove at any age, separated by commas; of a server, its old logs",
    older_than="days since the last change (named items are removed at any age)",
    force="also remove a named run that holds records which no pull has freed",
    example="inv clean --hosts all --older-than 14 --dry-run",
)
def clean(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    named: str = "",
    older_than: float = 30.0,
    force: bool = False,
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Remove old runs, logs and copies of Roost's code (payloads), unless they are in use or not yet pulled."""
    with session(host, hosts, inventory, json) as (fleet, output):
        if not older_than >= 0:
            raise UsageError(f"--older-than is {older_than:g}, but must be a number of days from 0 on.")
        request = CleanRequest(
            names=[part.strip() for part in named.split(",") if part.strip()],
            older_than_seconds=older_than * DAY_SECONDS,
            force=force,
            dry_run=dry_run,
            wait_for_lock=wait,
        )
        with live_lines(output, fleet) as lines:
            outcomes = fleet.call("clean", request, CleanResult, deadline=CLEAN_DEADLINE_SECONDS, on_progress=lines)
        details = partial(show_stored, output, outcomes, dry_run=dry_run)
        finish(output.outcomes(outcomes, partial(clean_line, dry_run=dry_run), details=details))


@roost_task(
    TARGET,
    ONE_JOB,
    JSON,
    DRY_RUN,
    run="name of the run (default: the one planned last)",
    example="inv compress --hosts all --run kimi-1",
)
def compress(
    context: Context,
    run: str = "",
    host: str | None = None,
    hosts: str | None = None,
    cluster: str = "",
    detach: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Compress finished shards in place to two thirds of their size, without loss; pull and verify read both forms."""
    job = Job(cluster, detach=detach, dry_run=dry_run)
    with job_or(session, job, host, hosts, inventory, json, detach=detach) as (fleet, output):
        identity = plan_for(fleet, chosen_run(fleet, output, run)).identity
        request = CompressRequest(identity=identity, dry_run=dry_run and not cluster)
        with live_lines(output, fleet) as lines:
            outcomes = fleet.call("compress", request, CompressResult, deadline=None, on_progress=lines)
        finish(output.outcomes(outcomes, _compressed_line, lambda result: bool(result.failed)))


@roost_task(
    PLACES,
    JSON,
    iterable=["paths"],
    paths="a *.rz file or a folder of them; may be given several times",
    out="folder for the plain shards (default: beside their containers)",
    remove="delete each container once its plain shard is verified and durable",
    changes=True,
    example="inv unpack --paths /data/kimi-1/hidden_states",
)
def unpack(
    context: Context,
    paths: list[str] | None = None,
    out: str = "",
    remove: bool = False,
    host: str | None = None,
    hosts: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Turn compressed shards into plain shards again, each verified by its digest."""
    with places(host, hosts, inventory, json) as (fleet, output):
        demand("inv unpack --paths /data/kimi-1/hidden_states", paths=paths)

        def request(there: Host) -> UnpackRequest:
            return UnpackRequest(
                paths=[local_path(there, path) for path in paths or []],
                out=local_path(there, out) if out else "",
                remove=remove,
            )

        with live_lines(output, fleet) as lines:
            outcomes = fleet.call("unpack", request, UnpackResult, deadline=None, on_progress=lines)
        finish(show_places(output, fleet, outcomes, _show_unpacked, lambda result: bool(result.failed)))


def clean_line(result: CleanResult, dry_run: bool) -> str:
    """Return `would free 3.2 TiB (2 runs, 1 payload), keeps 410.0 GiB`."""
    going = [item for item in result.stored if not item.kept]
    staying = sum(item.size_bytes for item in result.stored if item.kept)
    freed = sum(item.size_bytes for item in going)
    verb = "would free" if dry_run else "freed"
    kinds = {kind: sum(item.kind == kind for item in going) for kind in ("run", "job", "payload", "log", "unfinished")}
    counted = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in kinds.items() if count)
    return f"{verb} {size(freed)} ({counted or 'nothing'}), keeps {size(staying)}"


def show_stored(output: Output, outcomes: Sequence[Outcome[CleanResult]], *, dry_run: bool) -> None:
    """Print every item of each host, and whether it was removed."""
    rows = [
        (
            outcome.host.name,
            item.kind,
            item.name,
            size(item.size_bytes),
            duration(item.age_seconds),
            f"kept: {item.kept}" if item.kept else ("would remove" if dry_run else "removed"),
        )
        for outcome in outcomes
        for item in (outcome.value.stored if outcome.value else [])
    ]
    if rows:
        output.table(("host", "kind", "name", "size", "unchanged for", ""), rows)


def _compressed_line(result: CompressResult) -> str:
    if result.plain:
        return f"{result.plain:,} shards ({size(result.plain_bytes)}) would be compressed{_to(result)}"
    gained = result.plain_bytes - result.packed_bytes
    text = f"{result.compressed:,} shards compressed, {size(gained)} gained"
    return f"{text}, {len(result.failed):,} are damaged and stay plain" if result.failed else text


def _to(result: CompressResult) -> str:
    if not result.sampled:
        return ""
    return f", to {result.ratio:.2f} of that ({size(result.ratio * result.plain_bytes)}; measured on {result.sampled})"


def _show_unpacked(output: Output, result: UnpackResult) -> None:
    """Print the damaged containers with the reasons, then how many shards were unpacked."""
    for path, reason in result.failed.items():
        output.note(f"{path}: {reason}")
    ratio = result.packed_bytes / result.plain_bytes if result.plain_bytes else 0.0
    output.line(
        f"{result.unpacked:,} shards unpacked to {size(result.plain_bytes)} (compressed: {ratio:.3f} of that), "
        f"{result.present:,} were plain already, {len(result.failed):,} are damaged."
    )
