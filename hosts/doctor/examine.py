"""Examines one host: its facts, the network to it, and what they mean. Laptop's side, called by `inv doctor`."""

from __future__ import annotations

import copy

from hosts.doctor.findings import Diagnosis, Expectations, Finding, red
from hosts.doctor.judge import judge
from hosts.doctor.network import connection, measure
from hosts.errors import PythonError, RoostError
from hosts.fleet import OnProgress
from hosts.inventory.servers import server_needs
from hosts.transport.backend import Backend
from hosts.transport.ssh import SshBackend
from remote.shared.messages.facts import Facts, FactsRequest

DEADLINE_SECONDS = 180.0
"""Reading dozens of headers of a model on a cold network file system takes minutes."""
OTHER_PYTHONS = (
    "python3",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/venv/bin/python3",
    "/opt/conda/bin/python3",
    "/sgl-workspace/venv/bin/python3",
)
"""Tried in this order if the inventory's `python` cannot run Roost: the login's own, the system's, and where public
SGLang images and conda put theirs."""


def examine(backend: Backend, on_progress: OnProgress | None = None) -> Diagnosis:
    """Ask a host for its facts and judge them; copies the payload if it is missing, and changes nothing else.

    If the inventory's `python` cannot run Roost, that is one finding, and another Python on the host gives the other
    facts. Raises RoostError if the host cannot be reached or no Python there runs Roost.
    """
    host = backend.host
    try:
        facts, wrong = _facts(backend, on_progress), []
    except PythonError as error:
        backend, facts = _through_another(backend, error, on_progress)
        wrong = [_wrong_python(error, facts)]
    network = measure(backend) if host.connection == "ssh" else None
    findings = judge(facts, Expectations.of(host), network)
    if wrong:  # the other Python's packages say nothing about the inventory's `python`
        findings = wrong + [finding for finding in findings if finding.subject not in ("python", "sglang")]
    if isinstance(backend, SshBackend):
        findings = [*findings, *connection(backend.route)]
    return Diagnosis(facts=facts, network=network, findings=findings)


def _facts(backend: Backend, on_progress: OnProgress | None) -> Facts:
    host = backend.host
    request = FactsRequest(
        model=host.model,
        dump_dir=host.dump_dir,
        attach=host.attach,
        env=host.env,
        needs=server_needs(host),
        ask_servers=True,
    )
    told = None if on_progress is None else lambda line: on_progress(host, line)
    return backend.call("facts", request, Facts, deadline=DEADLINE_SECONDS, on_progress=told)


def _through_another(backend: Backend, first: PythonError, on_progress: OnProgress | None) -> tuple[Backend, Facts]:
    """Return the facts from the first other Python that runs Roost; raises `first` if there is none."""
    for python in OTHER_PYTHONS:
        other = copy.copy(backend)
        other.host = backend.host.model_copy(update={"python": python})
        try:
            return other, _facts(other, on_progress)
        except PythonError:
            continue
        except RoostError as error:
            raise first from error
    raise first


def _wrong_python(error: PythonError, facts: Facts) -> Finding:
    found = facts.capture.installation
    remedy = error.remedy
    if found is not None:
        remedy = f"Set `python: {facts.python.executable}`, which has SGLang {found.version}."
    return red("python", error.message.rstrip("."), remedy)
