"""`inv verify`: checks every shard of a destination, or of a run on its hosts; `repair.py` queues wrong ones again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from remote.shared.messages.envelope import Progress
from remote.shared.messages.verify import Fault, VerifyRequest, VerifyResult

MOST_FAULTS = 100_000
"""The most faults of one place that are reported one by one."""

OnFault = Callable[[str, Fault], None]
OnProgress = Callable[[Host, Progress], None]


def verify_folder(backend: Backend, request: VerifyRequest, on_fault: OnFault, on_progress: OnProgress) -> VerifyResult:
    """Check a destination on the host that holds it."""
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
    """Check a run's shards on the hosts that made them."""

    def one(backend: Backend) -> VerifyResult:
        return verify_folder(backend, request, on_fault, on_progress)

    return fleet.each(one)


def _faults_to(on_fault: OnFault, host: Host) -> Callable[[dict[str, Any]], None]:
    """Return a receiver that passes on the first faults only, because a million would fill memory; all are counted."""
    told = 0

    def hear(value: dict[str, Any]) -> None:
        nonlocal told
        fault = Fault.model_validate(value)
        told += 1
        if told <= MOST_FAULTS:
            on_fault(host.name, fault)

    return hear
