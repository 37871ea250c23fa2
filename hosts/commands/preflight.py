"""Checks that `inv serve` makes from the laptop before any start: driver and clock, judged as by `inv doctor`.

The host's own checks (model, GPUs, ports, disks) are in `remote/servers/probing/preflight.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from hosts.doctor import hardware, surroundings
from hosts.doctor.findings import Finding
from hosts.doctor.network import measure_clock
from hosts.errors import HostError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from remote.shared.messages.envelope import Progress
from remote.shared.messages.facts import Facts, FactsRequest

DEADLINE_SECONDS = 180.0

OnFinding = Callable[[Host, Finding], None]


def preflight(
    fleet: Fleet, on_progress: Callable[[Host, Progress], None] | None, on_finding: OnFinding | None
) -> list[Outcome[list[Finding]]]:
    """Check every host at once; a red finding becomes that host's error, and `on_finding` gets each yellow finding."""

    def one(backend: Backend) -> list[Finding]:
        findings = _findings(backend, on_progress)
        for finding in findings:
            if finding.level == "red":
                raise HostError(f"The {finding.subject} is unsuitable: {finding.text}.", remedy=finding.remedy)
        return findings

    outcomes = fleet.each(one)
    for outcome in outcomes:
        for finding in outcome.value or []:
            if finding.level == "yellow" and on_finding is not None:
                on_finding(outcome.host, finding)
    return outcomes


def _findings(backend: Backend, on_progress: Callable[[Host, Progress], None] | None) -> list[Finding]:
    host = backend.host
    findings: list[Finding] = []
    if host.gpus:
        told = None if on_progress is None else lambda line: on_progress(host, line)
        request = FactsRequest(dump_dir=host.dump_dir, attach=host.attach, env=host.env)
        facts = backend.call("facts", request, Facts, deadline=DEADLINE_SECONDS, on_progress=told)
        if facts.gpu.gpus:
            findings.append(hardware.driver(facts))
    if host.connection == "ssh":
        findings += surroundings.clock(measure_clock(backend))
    return findings
