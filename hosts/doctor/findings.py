"""The types of `inv doctor`: what the inventory expects of a host, and the findings. Laptop's side."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from hosts.inventory.model import Host
from remote.shared.messages.facts import Facts

Level = Literal["green", "yellow", "red"]


class Finding(BaseModel):
    """One finding about a host. Red: extraction cannot work. Yellow: extraction works, but slower or not for long."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


class Network(BaseModel):
    """The network between the laptop and a host, measured from the laptop."""

    round_trip_seconds: float
    """Shortest round trip of several lines to a process on the host and back."""
    clock_skew_seconds: float
    """The host's clock minus the laptop's, exact to about half the round trip."""
    bytes_per_second: float | None = None
    """Throughput of one stream over the control connection, which is slower than a pull; None if no data arrived."""


class Expectations(BaseModel):
    """What the inventory says about a host that the host's facts can confirm or contradict."""

    model_config = ConfigDict(extra="forbid")

    gpus: int = 8
    tp: int = 8
    layers: list[int] = Field(default_factory=list)
    dump_high_water_bytes: int = 64 << 30
    min_free_bytes: int = 20 << 30
    context_length: int | None = None

    @classmethod
    def of(cls, host: Host) -> Expectations:
        """Return the expectations that the inventory's settings imply."""
        servers = max(1, len(host.servers))
        return cls(
            gpus=host.gpus,
            tp=host.tp,
            layers=host.layers,
            dump_high_water_bytes=int(host.dump_high_water) * servers,
            min_free_bytes=int(host.min_free),
            context_length=host.context_length,
        )


class Diagnosis(BaseModel):
    """A host's facts and what they mean."""

    facts: Facts
    network: Network | None
    """None for the laptop itself."""
    findings: list[Finding]

    def count(self, level: Level) -> int:
        """Return the number of findings of this level."""
        return sum(finding.level == level for finding in self.findings)

    @property
    def is_red(self) -> bool:
        """Return whether something must be repaired before this host can extract."""
        return self.count("red") > 0


def green(subject: str, text: str) -> Finding:
    """Make a finding that needs no action."""
    return Finding(level="green", subject=subject, text=text)


def yellow(subject: str, text: str, remedy: str) -> Finding:
    """Make a finding that allows extraction but costs speed or time."""
    return Finding(level="yellow", subject=subject, text=text, remedy=remedy)


def red(subject: str, text: str, remedy: str) -> Finding:
    """Make a finding that prevents extraction."""
    return Finding(level="red", subject=subject, text=text, remedy=remedy)
