"""`inv doctor`: what every host has and lacks, and the way to it."""

from __future__ import annotations

from collections.abc import Callable

from hosts.doctor.findings import Diagnosis, Expectations
from hosts.doctor.judge import judge
from hosts.doctor.network import measure
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.inventory.servers import server_needs
from hosts.transport.backend import Backend
from remote.shared.messages.envelope import Progress
from remote.shared.messages.facts import Facts, FactsRequest

DEADLINE_SECONDS = 180.0
"""A model on a cold network file system has dozens of headers to read."""

OnProgress = Callable[[Host, Progress], None]


def doctor(fleet: Fleet, on_progress: OnProgress | None = None) -> list[Outcome[Diagnosis]]:
    """Look at every host at once; places the payload where it is missing and changes nothing else.

    A host that cannot be reached is an outcome with an error, and the others go on.
    """

    def one(backend: Backend) -> Diagnosis:
        host = backend.host
        facts = backend.call(
            "facts",
            _request(host),
            Facts,
            deadline=DEADLINE_SECONDS,
            on_progress=None if on_progress is None else lambda line: on_progress(host, line),
        )
        way = measure(backend) if host.connection == "ssh" else None
        return Diagnosis(facts=facts, network=way, findings=judge(facts, Expectations.of(host), way))

    return fleet.each(one)


def _request(host: Host) -> FactsRequest:
    return FactsRequest(
        model=host.model, dump_dir=host.dump_dir, attach=host.attach, env=host.env, needs=server_needs(host)
    )
