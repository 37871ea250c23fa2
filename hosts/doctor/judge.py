"""Compares a host's facts with the inventory's expectations. Laptop's side, called by `inv doctor`; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hosts.doctor import hardware, software, surroundings
from hosts.doctor.findings import Expectations, Finding, Network
from remote.shared.messages.facts import Facts

Rule = Callable[[Facts, Expectations], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    surroundings.machine,
    surroundings.others,
    hardware.gpus,
    hardware.occupants,
    hardware.links,
    software.python,
    software.capture,
    software.model,
    surroundings.disk,
    surroundings.ram_disk,
    surroundings.ports,
    surroundings.servers,
    surroundings.limits,
    surroundings.logins,
    surroundings.tools,
)


def judge(facts: Facts, wanted: Expectations, way: Network | None = None) -> list[Finding]:
    """Return every finding about a host, in the order of the rules; `way` is None for the laptop itself."""
    findings = [finding for rule in RULES for finding in rule(facts, wanted)]
    return findings if way is None else [*findings, *surroundings.network(way), *surroundings.clock(way)]
