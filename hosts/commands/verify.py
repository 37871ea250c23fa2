"""`inv verify`: every shard of a destination, or of a run on its hosts, and the wrong ones queued again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.plan import ranges as sets
from hosts.plan.plan import Plan
from hosts.transport.backend import Backend
from remote.messages.dataset import Ranges
from remote.messages.envelope import Progress
from remote.messages.extract import IndicesRequest, IndicesResult
from remote.messages.verify import Fault, ForgetRequest, ForgetResult, VerifyRequest, VerifyResult

OnFault = Callable[[str, Fault], None]
OnProgress = Callable[[Host, Progress], None]


def verify_folder(backend: Backend, request: VerifyRequest, on_fault: OnFault, on_progress: OnProgress) -> VerifyResult:
    """Check a destination where it is."""
    return backend.call(
        "verify",
        request,
        VerifyResult,
        deadline=None,
        on_item=_faults_to(on_fault, backend.host),
        on_progress=lambda line: on_progress(backend.host, line),
    )


def verify_run(
    fleet: Fleet, request: VerifyRequest, on_fault: OnFault, on_progress: OnProgress
) -> list[Outcome[VerifyResult]]:
    """Check a run's shards on every host, where they lie."""

    def one(backend: Backend) -> VerifyResult:
        return verify_folder(backend, request, on_fault, on_progress)

    return fleet.each(one)


def _faults_to(on_fault: OnFault, host: Host) -> Callable[[dict[str, Any]], None]:
    return lambda value: on_fault(host.name, Fault.model_validate(value))


def repair_run(fleet: Fleet, run: str, outcomes: list[Outcome[VerifyResult]]) -> list[Outcome[IndicesResult]]:
    """Queue on each host the records that were found wrong there; their shards are deleted."""
    wrong = {outcome.host.name: outcome.result.requeue for outcome in outcomes if outcome.ok and outcome.result.requeue}
    return _requeue(fleet, run, wrong)


def repair_folder(
    fleet: Fleet, plan: Plan, backend: Backend, folder: str, wrong: Ranges
) -> list[Outcome[IndicesResult]]:
    """Take wrong records out of a destination and queue them on the hosts that have them to do.

    The next `inv extract` makes exactly these, and the next `inv pull` brings them.
    """
    backend.call("forget", ForgetRequest(folder=folder, ranges=wrong), ForgetResult, deadline=None)
    return _requeue(fleet, plan.run, {share.host: sets.intersection(share.ranges, wrong) for share in plan.shares})


def _requeue(fleet: Fleet, run: str, wrong: dict[str, Ranges]) -> list[Outcome[IndicesResult]]:
    hosts = fleet.narrowed([host for host in fleet.hosts if wrong.get(host.name)])
    return hosts.call(
        "requeue",
        lambda host: IndicesRequest(run=run, indices=list(sets.indices(wrong[host.name]))),
        IndicesResult,
    )
