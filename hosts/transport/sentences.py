"""Turns every failure of a connection into one sentence with its remedy, the same for Fabric and OpenSSH."""

from __future__ import annotations

import re
import socket

from paramiko.ssh_exception import (
    BadHostKeyException,
    ChannelException,
    IncompatiblePeer,
    NoValidConnectionsError,
    SSHException,
)

from hosts.errors import AuthenticationError, HostKeyError, HostUnreachableError, RoostError
from hosts.transport.known_hosts import Verdict
from hosts.transport.settings import Hop

_SILENCE = ("No existing session", "Error reading SSH protocol banner")
"""The text of paramiko's error if the kernel accepted the connection but sshd, which is frozen, did not."""


class LoginDroppedError(HostUnreachableError):
    """The server closed the connection before any key was offered, usually because it is at its limit of logins."""


def dropped(where: str) -> LoginDroppedError:
    """Return the error for `MaxStartups`, for a server that is just starting, or for another program on the port."""
    return LoginDroppedError(
        f"{where} could not be reached: the connection was closed before an SSH server spoke.",
        remedy="Its sshd may be at its limit of logins (`MaxStartups`): try again later. Or another program listens "
        "on that port: correct `ssh_port` in the inventory.",
    )


def bad_key(hop: Hop, verdict: Verdict, name: str) -> HostKeyError:
    """Return the error for a server whose key must not be accepted; nothing was sent to it."""
    line = verdict.line
    if verdict.judgement == "revoked" and line is not None:
        what = "revokes a key that cannot be read, so no key is safe" if line.problem else "revokes that key"
        return HostKeyError(
            f"The host key of {hop.where} is not to be trusted: {line.place} {what}; nothing was sent.",
            remedy="Ask the host's administrator for the new key; change that line only if you know why it is there.",
        )
    if verdict.judgement == "changed" and line is not None:
        return HostKeyError(
            f"The host key of {hop.where} has CHANGED since it was trusted ({line.place}, {line.kind}); "
            "nothing was sent.",
            remedy=f"If the host was reinstalled: ssh-keygen -f {line.path} -R '{hop.names[0]}', "
            f"then inv trust --host {name}.",
        )
    return HostKeyError(
        f"The host key of {hop.where} is not known; nothing was sent.",
        remedy=f"Compare its fingerprint and accept it: inv trust --host {name}.",
    )


def of_paramiko(error: Exception, hop: Hop, name: str, timeout: float) -> RoostError:
    """Return the error for paramiko's exception while it connected to `hop`, on the way to the host `name`."""
    if isinstance(error, RoostError):
        return error
    if isinstance(error, BadHostKeyException):
        return bad_key(hop, Verdict("changed"), name)
    if isinstance(error, IncompatiblePeer):
        return HostUnreachableError(
            f"{hop.where} could not be reached: {str(error).rstrip('.')}.",
            remedy="Set `ssh: openssh` for this host; OpenSSH knows more algorithms than Fabric.",
        )
    if isinstance(error, ChannelException):
        return HostUnreachableError(
            f"{hop.where} could not be reached: the jump host before it could not connect there: {error.text}."
        )
    return unreachable(error, hop.where, timeout)


def unreachable(error: Exception, where: str, timeout: float) -> HostUnreachableError:
    """Return the error for a server that refused or closed the connection, or sent nothing within `timeout` seconds.

    If all addresses of a name were tried, the error has the reason of the first address.
    """
    cause = next(iter(error.errors.values())) if isinstance(error, NoValidConnectionsError) else error
    if isinstance(cause, ConnectionRefusedError):
        return refused(where)
    if isinstance(cause, socket.gaierror):
        return no_such_name(where)
    if isinstance(cause, EOFError | ConnectionResetError | BrokenPipeError):
        return dropped(where)
    waited = isinstance(cause, TimeoutError) or str(cause).startswith(_SILENCE)
    return no_answer(where, _reason(cause), timeout if waited else None)


def refused(where: str) -> HostUnreachableError:
    """Return the error for a port on which nothing listens."""
    return HostUnreachableError(
        f"{where} could not be reached: connection refused, so no SSH server listens on that port.",
        remedy="Start sshd there, or correct the host's `address` and `ssh_port` in the inventory.",
    )


def no_such_name(where: str) -> HostUnreachableError:
    """Return the error for a name that the resolver does not know."""
    return HostUnreachableError(
        f"{where} could not be reached: the name does not resolve.",
        remedy="Correct the host's `address` in the inventory, or its alias in `ssh_config`.",
    )


def no_answer(where: str, reason: str, within: float | None) -> HostUnreachableError:
    """Return the error for any other reason. `within` is the deadline in seconds, None if no deadline passed."""
    waited = f" within {within:.0f} s" if within is not None else ""
    return HostUnreachableError(
        f"{where} could not be reached{waited}: {reason}.",
        remedy="Check the address, the network and that sshd runs there.",
    )


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror.lower()}: {error.filename}" if error.filename else error.strerror.lower()
    if isinstance(error, SSHException) and str(error).startswith(_SILENCE):
        return "the connection was taken and no SSH server spoke"
    return str(error).rstrip(".") or type(error).__name__


_OF_OPENSSH: tuple[tuple[str, str], ...] = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|[Hh]ost key .*has changed", "changed"),
    (r"REVOKED HOST KEY|is marked as revoked", "revoked"),
    (r"[Hh]ost key verification failed|No .* host key is known", "new"),
    (r"Permission denied \(|Too many authentication failures|no more authentication methods", "login"),
    (r"Could not resolve hostname", "name"),
    (r"Connection refused", "refused"),
    (r"timed out during banner exchange", "mute"),
    (r"timed out", "late"),
    (r"No route to host|unreachable", "network"),
    (r"kex_exchange_identification|ssh_exchange_identification|Connection (?:closed|reset) by", "dropped"),
)


_SILENT_END = "the connection was closed during the login, as sshd does after its LoginGraceTime"


def of_openssh(said: str, hop: Hop, name: str, timeout: float) -> RoostError:
    """Return the error for the output of an `ssh` that could not log in to `hop`, on the way to the host `name`."""
    kind = next((kind for pattern, kind in _OF_OPENSSH if re.search(pattern, said)), "")
    last = _last_line(said)
    if kind in {"changed", "revoked", "new"}:
        return _key_of_openssh(kind, hop, name)
    if kind == "login":
        return AuthenticationError(
            f"{hop.where} refused the login: {last}.",
            remedy="Check `user` and `identity_file`, or ssh-add the key.",
        )
    simple = {"name": no_such_name, "refused": refused, "dropped": dropped}
    if kind in simple:
        return simple[kind](hop.where)
    reasons = {
        "mute": "the connection was taken and no SSH server spoke",
        "late": "no answer",
        "network": last.rpartition(": ")[2].lower(),
    }
    return no_answer(hop.where, reasons.get(kind, last or _SILENT_END), timeout if kind in {"mute", "late"} else None)


def _key_of_openssh(kind: str, hop: Hop, name: str) -> HostKeyError:
    """Return the same error as for Fabric, with the line of known_hosts that OpenSSH names."""
    known = hop.known()
    own = [line for line in known.lines if any(line.is_for(one) for one in hop.names)]
    if kind == "revoked":
        line = next((line for line in own if line.marker == "@revoked"), None)
        return bad_key(hop, Verdict("revoked", line), name)
    plain = next((line for line in own if not line.marker and not line.problem), None)
    # With strict checking OpenSSH says "No ED25519 host key is known" for a host whose key of another type is known.
    return bad_key(hop, Verdict("changed", plain) if plain else Verdict("new"), name)


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else ""
