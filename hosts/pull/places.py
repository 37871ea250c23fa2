"""Where a pull goes: a folder here, a bucket, or a folder on a host of the inventory. Runs on the laptop."""

from __future__ import annotations

from dataclasses import dataclass

from hosts.fleet import Fleet
from hosts.inventory.model import Host


@dataclass(frozen=True)
class Place:
    """A folder on a host of the inventory."""

    host: Host
    folder: str

    def __str__(self) -> str:
        return f"{self.host.name}:{self.folder}"


def place_of(fleet: Fleet, to: str) -> Place | None:
    """The host and the folder, if `to` is `HOST:FOLDER` with a host of the inventory."""
    name, colon, folder = to.partition(":")
    host = fleet.inventory.hosts.get(name)
    return Place(host, folder) if colon and host is not None and folder else None
