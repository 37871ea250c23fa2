"""One host examined: its facts, the network to it, and what they mean. Laptop's side, called by `inv doctor`."""

from __future__ import annotations

from hosts.doctor.findings import Diagnosis, Expectations
from hosts.doctor.judge import judge
from hosts.doctor.network import measure
from hosts.fleet import OnProgress
from hosts.inventory.servers import server_needs
from hosts.transport.backend import Backend
from remote.shared.messages.facts import Facts, FactsRequest

DEADLINE_SECONDS = 180.0
"""A model on a cold network file system has dozens of headers to read."""


def examine(backend: Backend, on_progress: OnProgress | None = None) -> Diagnosis:
    """Ask a host for its facts and judge them; places the payload if it is missing and changes nothing else.

    Raises RoostError if the host cannot be reached.
    """
    host = backend.host
    request = FactsRequest(
        model=host.model, dump_dir=host.dump_dir, attach=host.attach, env=host.env, needs=server_needs(host)
    )
    told = None if on_progress is None else lambda line: on_progress(host, line)
    facts = backend.call("facts", request, Facts, deadline=DEADLINE_SECONDS, on_progress=told)
    network = measure(backend) if host.connection == "ssh" else None
    return Diagnosis(facts=facts, network=network, findings=judge(facts, Expectations.of(host), network))
