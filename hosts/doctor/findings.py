"""What a host is held against, and what is found. Laptop's side; plain types."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from hosts.inventory.model import Host
from remote.shared.messages.facts import Facts

Level = Literal["green", "yellow", "red"]


class Finding(BaseModel):
    """One thing about a host. Red: extraction cannot work so. Yellow: it can, but slower, or not for long."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


class Network(BaseModel):
    """The way between the laptop and a host, measured from the laptop."""

    round_trip_seconds: float
    """Shortest of several exchanges of one line with a process over there."""
    clock_skew_seconds: float
    """The host's clock minus the laptop's; right to about half the round trip."""
    bytes_per_second: float | None = None
    """What one stream of the control connection brought; a pull over OpenSSH is faster. None where nothing came."""


class Expectations(BaseModel):
    """What the inventory promises or wants of a host."""

    model_config = ConfigDict(extra="forbid")

    gpus: int = 8
    tp: int = 8
    layers: list[int] = Field(default_factory=list)
    dump_high_water_bytes: int = 64 << 30
    min_free_bytes: int = 20 << 30
    context_length: int | None = None

    @classmethod
    def of(cls, host: Host) -> Expectations:
        """The inventory's settings that facts can be held against."""
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
        """How many findings are of this level."""
        return sum(finding.level == level for finding in self.findings)

    @property
    def is_red(self) -> bool:
        """Whether something must be mended before this host can work."""
        return self.count("red") > 0


def green(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding(level="green", subject=subject, text=text)


def yellow(subject: str, text: str, remedy: str) -> Finding:
    """It works, but."""
    return Finding(level="yellow", subject=subject, text=text, remedy=remedy)


def red(subject: str, text: str, remedy: str) -> Finding:
    """It will not work."""
    return Finding(level="red", subject=subject, text=text, remedy=remedy)
