"""Writes a plan's shares as assignment folders on the laptop, ready to be pushed (for `inv extract`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.inventory.model import Host
from hosts.plan.plan import Plan, PlannedShare
from remote.shared.files import write_whole
from remote.shared.messages.dataset import AssignRequest, AssignResult, HostShare
from remote.shared.messages.envelope import Progress
from remote.shared.messages.extract import Assignment
from remote.shared.paths import PLAN_FILE

PREFILL_SECONDS = 600.0
"""Seconds for a request to wait in the queue and to be prefilled."""
SLOWEST_TOKENS_PER_SECOND = 5.0
"""Tokens per second of one request on a fully used server."""


def assignments(
    fleet: Fleet, plan: Plan, on_progress: Callable[[Host, Progress], None] | None = None
) -> dict[str, Path]:
    """Write the folder of every host of the fleet with a share in `plan`, and return the folders by host name.

    Runs the verb `assign` on the laptop, which takes the vocabulary and the counts from the dataset.
    """
    hosts = {host.name: host for host in fleet.hosts}
    mine = [share for share in plan.shares if share.host in hosts]
    if not plan.shares:
        raise UsageError(f"Every record of the run {plan.run!r} is delivered, so nothing is left to extract.")
    if not mine:
        raise UsageError(f"None of these hosts has a share in the plan of {plan.run!r}.")
    shares = [_host_share(plan, share, hosts[share.host], _folder(fleet, plan, share)) for share in mine]
    fleet.local.call(
        "assign",
        AssignRequest(dataset=plan.dataset, shares=shares),
        AssignResult,
        deadline=None,
        on_progress=None if on_progress is None else lambda line: on_progress(fleet.inventory.local, line),
    )
    content = plan.model_dump_json(indent=1).encode()
    for share in shares:
        write_whole(Path(share.folder) / PLAN_FILE, content)
    return {share.assignment.host: Path(share.folder) for share in shares}


def _folder(fleet: Fleet, plan: Plan, share: PlannedShare) -> Path:
    return fleet.inventory.kept.assignment(plan.run, share.epoch, share.host)


def _host_share(plan: Plan, share: PlannedShare, host: Host, folder: Path) -> HostShare:
    assignment = Assignment(
        identity=plan.identity,
        host=host.name,
        epoch=share.epoch,
        ranges=share.ranges,
        plan=plan.digest,
        planned_by=plan.planned_by,
        planned_at=plan.planned_at,
        records=share.records,
        tokens=share.tokens,
        server_names=server_names(host),
        concurrency=plan.concurrency,
        **_patience(plan),
        parity_rate=host.parity_rate,
        in_flight_tokens=host.in_flight_tokens,
        min_free_bytes=int(host.min_free),
        store=host.store,
        vocab_size=0,
        context_length=share.context_length,
    )
    return HostShare(assignment=assignment, ranges=share.ranges, folder=str(folder))


def _patience(plan: Plan) -> dict[str, float]:
    """Return the timeout of a run of answers: the longest answer's seconds on a fully used server."""
    answers = plan.identity.answers
    if answers is None:
        return {}
    return {"request_timeout_seconds": PREFILL_SECONDS + answers.max_tokens / SLOWEST_TOKENS_PER_SECOND}


def server_names(host: Host) -> list[str]:
    """Return the names of the host's servers that get requests, as `hosts.inventory.servers` names them."""
    return [
        entry.name or f"server{number}"
        for number, entry in enumerate(host.servers)
        if not entry.nodes or entry.nodes[0] == host.name
    ] or ["main"]
