"""`inv doctor`: each host's facts, what they mean, and the way to it."""

from __future__ import annotations

import time

from pydantic import BaseModel

from hosts.doctor.judge import Finding, Link, judge
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from remote.messages.facts import Facts, FactsRequest
from remote.messages.hello import HelloRequest, HelloResult

DEADLINE_SECONDS = 180.0
ECHO_BYTES = 2 << 20
PINGS = 3


class Diagnosis(BaseModel):
    """One host's facts and what to make of them."""

    facts: Facts
    link: Link
    findings: list[Finding]

    @property
    def is_red(self) -> bool:
        """Whether something must be mended before this host can work."""
        return any(finding.level == "red" for finding in self.findings)


def doctor(fleet: Fleet) -> list[Outcome[Diagnosis]]:
    """Look at every host at once; places the payload where it is missing and changes nothing else."""

    def one(backend: Backend) -> Diagnosis:
        link = measure_link(backend)
        facts = backend.call("facts", _request(backend.host), Facts, deadline=DEADLINE_SECONDS)
        return Diagnosis(facts=facts, link=link, findings=judge(facts, backend.host, link))

    return fleet.each(one)


def measure_link(backend: Backend) -> Link:
    """Round trip, throughput and clock skew, from a few calls that do nothing over there."""
    backend.call("hello", HelloRequest(), HelloResult)
    round_trip = min(backend.round_trip() for _ in range(PINGS))
    before = time.time()
    answer = backend.call("hello", HelloRequest(), HelloResult)
    skew = answer.clock_at - (before + time.time()) / 2
    return Link(round_trip_seconds=round_trip, bytes_per_second=backend.throughput(ECHO_BYTES), skew_seconds=skew)


def _request(host: Host) -> FactsRequest:
    ports = [entry.port for entry in host.servers if entry.port] or [host.port]
    return FactsRequest(model=host.model, dump_dir=host.dump_dir, ports=ports, env=host.env)
