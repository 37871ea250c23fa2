"""The laptop's own errors. Their root is `remote.shared.errors.RoostError`, as on the hosts.

Every message is one sentence that names the host, what was tried and what happened; `remedy` says what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from remote.shared.errors import HostError, PythonError, RoostError, UsageError

__all__ = [
    "AuthenticationError",
    "ConnectionLostError",
    "HostError",
    "HostKeyError",
    "HostUnreachableError",
    "InventoryError",
    "ProtocolError",
    "PythonError",
    "RoostError",
    "UsageError",
    "nearest",
]


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return `Did you mean 'gpu1'?` for the known word that is most similar to `word`; empty if none is."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"Did you mean {close[0]!r}?" if close else ""


class InventoryError(UsageError):
    """The inventory file cannot be used until it is corrected."""

    kind = "inventory"


class HostUnreachableError(HostError, ConnectionError):
    """No SSH session could be opened: wrong name, network or port, or a host that accepts but never answers."""

    kind = "unreachable"


class HostKeyError(HostError):
    """The host's key is unknown or has changed; nothing was sent to it."""

    kind = "host-key"


class AuthenticationError(HostError):
    """The host refused every key that was offered."""

    kind = "authentication"


class ConnectionLostError(HostError, ConnectionError):
    """The session broke or fell silent during a call."""

    kind = "connection-lost"


class ProtocolError(HostError):
    """The host's answer was not one of a Roost payload."""

    kind = "protocol"
