"""What keeps a host's servers from starting before its own checks: a driver that will not do, no way in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from hosts.commands import preflight as looking
from hosts.commands.serve import serve
from hosts.doctor.findings import Finding, Network
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host, Inventory, Mode
from hosts.transport.backend import Backend
from hosts.transport.local import LocalBackend
from remote.shared.messages.facts import Facts
from remote.shared.messages.server import ServeResult

BASE = json.loads((Path(__file__).parents[1] / "doctor" / "base.json").read_text())


class Host8(LocalBackend):
    """Answers for a box with GPUs: the facts of `base.json`, on `old` under a driver that is too old for its torch."""

    asked: list[str]

    def call(self, verb: str, request: BaseModel, result: type[Any], **options: object) -> Any:
        self.asked = [*getattr(self, "asked", []), verb]
        if verb == "facts":
            gpu = {**BASE["gpu"], **({"cuda": "12.4"} if self.host.name == "old" else {})}
            return Facts.model_validate({**BASE, "gpu": gpu})
        assert verb == "serve"
        return ServeResult()


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    hosts = [
        Host(name=name, connection="local", python=sys.executable, model="/m", modes={"serve": Mode()})
        for name in ("new", "old")
    ]
    made = Fleet(Inventory(path=tmp_path, hosts={}, local=hosts[0]), hosts)
    made._backends = {host.name: Host8(host) for host in hosts}
    return made


def test_a_driver_that_doctor_calls_red_is_refused_and_the_other_host_starts(fleet: Fleet) -> None:
    told: list[Outcome[ServeResult]] = []
    new, old = serve(fleet, mode="serve", on_outcome=told.append)
    assert new.ok
    assert old.error is not None
    assert "torch is built for CUDA" in old.error.message
    assert old.error.remedy
    assert {outcome.host.name for outcome in told} == {"new", "old"}
    asked = {name: backend.asked for name, backend in fleet._backends.items() if isinstance(backend, Host8)}
    assert asked == {"new": ["facts", "serve"], "old": ["facts"]}


def test_a_wrong_clock_is_reported_and_servers_start(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def ahead(backend: Backend) -> Network:
        return Network(round_trip_seconds=0.01, clock_skew_seconds=95.0)

    monkeypatch.setattr(looking, "measure_clock", ahead)
    fleet.hosts = [host.model_copy(update={"connection": "ssh"}) for host in fleet.hosts[:1]]
    fleet._backends = {host.name: Host8(host) for host in fleet.hosts}
    told: list[tuple[Host, Finding]] = []
    [outcome] = serve(fleet, mode="serve", on_finding=lambda host, finding: told.append((host, finding)))
    assert outcome.ok
    assert [(host.name, finding.subject) for host, finding in told] == [("new", "clock")]
