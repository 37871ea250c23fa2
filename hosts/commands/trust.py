"""`inv trust`: look at a host's key and accept it."""

from __future__ import annotations

from pydantic import BaseModel

from hosts.fleet import Fleet, Outcome
from hosts.transport.backend import Backend
from hosts.transport.trust import presented_key, remember


class Trusted(BaseModel):
    """What happened to one host's key."""

    name: str
    kind: str
    fingerprint: str
    known_before: bool
    added_to: str = ""


def trust(fleet: Fleet, *, accept: bool) -> list[Outcome[Trusted]]:
    """Return every host's key; with `accept`, add the unknown ones to known_hosts.

    A host that known_hosts holds another key for is an error: a changed key is never replaced here.
    """

    def one(backend: Backend) -> Trusted:
        host = backend.host
        if host.connection == "local":
            return Trusted(name=host.name, kind="local", fingerprint="", known_before=True)
        key = presented_key(host)
        added = str(remember(host, key)) if accept and not key.known else ""
        return Trusted(
            name=key.name, kind=key.kind, fingerprint=key.fingerprint, known_before=key.known, added_to=added
        )

    return fleet.each(one)
