"""The dialogue of `inv trust`: the keys on the way to each host, and which of them are accepted."""

from __future__ import annotations

import re
from collections.abc import Callable

from pydantic import BaseModel

from hosts.console.output import Output
from hosts.errors import UsageError
from hosts.fleet import Fleet, Outcome
from hosts.transport.backend import Backend
from hosts.transport.trust import PresentedKey, look


class TrustedKey(BaseModel):
    """One server's key: the host's own, or that of a jump host before it."""

    name: str
    """The server's name in known_hosts."""
    kind: str
    fingerprint: str
    jump: bool
    known_before: bool
    authority: str = ""
    """The `@cert-authority` line that certifies the server, as `FILE line N`."""
    added_to: str = ""

    @property
    def trusted(self) -> bool:
        """Return whether connections accept this key now."""
        return self.known_before or bool(self.added_to)


class Trusted(BaseModel):
    """The keys on the way to one host, and what was done with them."""

    keys: list[TrustedKey]
    unseen: list[str] = []
    """Servers behind a server with an untrusted key; their keys cannot be read yet."""

    @property
    def complete(self) -> bool:
        """Return whether every key is trusted, so that the host can be reached."""
        return not self.unseen and all(key.trusted for key in self.keys)


def trust(fleet: Fleet, accept: Callable[[str], bool]) -> list[Outcome[Trusted]]:
    """Return the keys of every host and its jump hosts; add new keys whose fingerprint `accept` approves.

    If known_hosts has another key for a host, of any type, that is an error: a changed key is never replaced here.
    """

    def one(backend: Backend) -> Trusted:
        host = backend.host
        if host.connection == "local":
            return Trusted(keys=[])
        seen = look(host, lambda key: accept(key.fingerprint))
        return Trusted(keys=[_trusted_key(key) for key in seen.keys], unseen=seen.unseen)

    return fleet.each(one)


def _trusted_key(key: PresentedKey) -> TrustedKey:
    return TrustedKey(
        name=key.name,
        kind=key.kind,
        fingerprint=key.fingerprint,
        jump=key.hop.jump,
        known_before=key.known,
        authority=key.authority,
        added_to=key.added_to,
    )


def ask(fleet: Fleet, output: Output, seen: list[Outcome[Trusted]]) -> list[Outcome[Trusted]]:
    """Show the new keys and ask, until there are no new keys: a host's key is seen once its jump host is trusted."""
    accepted: set[str] = set()
    while new := [key for outcome in seen if outcome.ok for key in outcome.result.keys if not key.trusted]:
        output.outcomes(seen, keys_line, lambda result: not result.complete)
        if input("Trust the new keys? [y/N] ").strip().lower() not in {"y", "yes"}:
            return seen
        accepted |= {key.fingerprint for key in new}  # only the keys that were shown
        seen = trust(fleet, accepted.__contains__)
    return seen


def fingerprints(text: str | None) -> set[str]:
    """Return the fingerprints in `--fingerprint`; raises UsageError for anything but a SHA-256 fingerprint."""
    found = {part.strip() for part in (text or "").split(",") if part.strip()}
    for one in found:
        if not re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", one):
            raise UsageError(f"--fingerprint {one!r} is not a fingerprint such as `ssh-keygen -l` prints: SHA256:…")
    return found


def keys_line(result: Trusted) -> str:
    """Return `[gpu7]:22 ssh-ed25519 SHA256:… (known)`, with a part for each server."""
    unseen = [f"{name} is behind that server and cannot be seen yet" for name in result.unseen]
    return "; ".join([*(_key(key) for key in result.keys), *unseen]) or "runs here, without SSH"


def _key(key: TrustedKey) -> str:
    if key.added_to:
        state = f"added to {key.added_to}"
    elif key.authority:
        state = f"accepted by the certificate authority in {key.authority}"
    else:
        state = "known" if key.known_before else "NOT trusted yet"
    return f"{'jump host ' if key.jump else ''}{key.name} {key.kind} {key.fingerprint} ({state})"
