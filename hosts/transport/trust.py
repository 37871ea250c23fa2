"""`inv trust`: reads the key of every server on the way to a host, and remembers accepted keys.

A key is written where OpenSSH looks for it: in the first UserKnownHostsFile, under the server's HostKeyAlias or its
address and port, and hashed if the configuration says HashKnownHosts.
"""

from __future__ import annotations

import base64
import os
import shlex
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paramiko
from filelock import FileLock

from hosts.errors import HostKeyError, HostUnreachableError, RoostError
from hosts.inventory.model import Host
from hosts.transport.admission import login
from hosts.transport.known_hosts import fingerprint, hashed
from hosts.transport.openssh import destination, login_options, ssh_arguments
from hosts.transport.over_fabric import prefer_key_types, proxy_socket
from hosts.transport.sentences import bad_key, dropped, of_paramiko
from hosts.transport.settings import Hop, Route, resolve

Accept = Callable[["PresentedKey"], bool]


@dataclass(frozen=True)
class PresentedKey:
    """The key that one server's sshd presents."""

    hop: Hop
    kind: str
    base64: str
    known: bool
    """Whether known_hosts already has exactly this key, or a certificate authority that signed the host's key."""
    authority: str = ""
    """`FILE line N` of the `@cert-authority` by which OpenSSH accepted the host."""
    added_to: str = ""

    @property
    def name(self) -> str:
        """The server's name in known_hosts."""
        return self.hop.names[0]

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -l` prints it: SHA256:…"""
        return fingerprint(base64.b64decode(self.base64))


@dataclass(frozen=True)
class Presented:
    """The keys of the servers on the way to one host, in order. Keys behind an untrusted server cannot be read."""

    keys: list[PresentedKey]
    unseen: list[str]


def look(host: Host, accept: Accept) -> Presented:
    """Return the key of every server on the way to `host`. A new key is remembered if `accept` returns True for it.

    Servers receive nothing but the handshake; on a jump host whose key is known, this also logs in. Raises HostKeyError
    for a changed or revoked key, HostUnreachableError, or a jump host's AuthenticationError.
    """
    route = resolve(host)
    keys: list[PresentedKey] = []
    for number, hop in enumerate(route.hops):
        key = _presented(route, number)
        if not key.known and accept(key):
            key = PresentedKey(hop, key.kind, key.base64, known=False, added_to=str(remember(key)))
        keys.append(key)
        if not key.known and not key.added_to:
            return Presented(keys, [later.names[0] for later in route.hops[number + 1 :]])
    return Presented(keys, [])


def remember(key: PresentedKey) -> Path:
    """Append the key to the first known_hosts file of its server (0600, under a lock) and return the file's path."""
    files = [path for path in key.hop.known_hosts_files if path != Path("/dev/null")]
    if not files:
        raise HostKeyError(
            f"The key of {key.hop.where} cannot be remembered, because UserKnownHostsFile names no file.",
            remedy="Set `known_hosts` for this host in the inventory.",
        )
    path = files[0]
    name = hashed(key.name, os.urandom(20)) if key.hop.is_on("hashknownhosts") else key.name
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "a+", encoding="utf-8", errors="surrogateescape") as stream:
                stream.seek(0)
                text = stream.read()
                newline = "" if not text or text.endswith("\n") else "\n"
                stream.write(f"{newline}{name} {key.kind} {key.base64}\n")
    except OSError as error:
        raise HostUnreachableError(f"{path} could not be written: {error.strerror}.") from error
    return path


def _presented(route: Route, number: int) -> PresentedKey:
    hop = route.hops[number]
    key = login([hop], lambda: _handshake(route, number))
    kind, blob, encoded = key.get_name(), key.asbytes(), key.get_base64()
    known = hop.known()
    authority = known.authority(hop.names)
    if authority is not None and _openssh_accepts(route, number):
        return PresentedKey(hop, kind, encoded, known=True, authority=authority.place)
    verdict = known.judge(hop.names, blob)
    if verdict.judgement in {"changed", "revoked"}:
        raise bad_key(hop, verdict, route.host.name)
    return PresentedKey(hop, kind, encoded, known=verdict.judgement == "known")


def _handshake(route: Route, number: int) -> paramiko.PKey:
    """Return the server's key, after the key exchange and without a login."""
    hop, timeout = route.hops[number], route.host.connect_timeout
    sock: socket.socket | None = None
    transport: paramiko.Transport | None = None
    try:
        sock = _socket(route, number)
        transport = paramiko.Transport(sock)
        transport.banner_timeout = timeout
        prefer_key_types(transport, hop)
        transport.start_client(timeout=timeout * (number + 1))
        return transport.get_remote_server_key()
    except RoostError:
        raise
    except Exception as error:
        if transport is not None and not transport.remote_version and not isinstance(error, TimeoutError):
            raise dropped(hop.where) from error
        raise of_paramiko(error, hop, route.host.name, timeout) from error
    finally:
        if transport is not None:
            transport.close()
        if sock is not None:
            sock.close()


def _socket(route: Route, number: int) -> socket.socket:
    """Return a socket to the server: TCP, its ProxyCommand, or OpenSSH's tunnel through the jump hosts before it."""
    hop = route.hops[number]
    if number:
        forward = f"{_bracketed(hop.hostname)}:{hop.port}"
        return proxy_socket(shlex.join([*_ssh_to(route, number - 1), "-W", forward, "--", route.hops[number - 1].name]))
    if command := hop.option("proxycommand"):
        return proxy_socket(hop.expanded(command))
    return socket.create_connection((hop.hostname, hop.port), route.host.connect_timeout)


def _ssh_to(route: Route, number: int) -> list[str]:
    """Return `ssh` with the options that reach one of the hops, without the hop's name."""
    hop = route.hops[number]
    if not hop.jump:
        return ["ssh", *ssh_arguments(route.host, route.config), "-T"]
    before = [
        f"{one.user}@{f'[{one.name}]' if ':' in one.name else one.name}:{one.port}" for one in route.hops[:number]
    ]
    through = ["-J", ",".join(before)] if before else []
    return ["ssh", "-F", str(route.config), "-T", *login_options(hop.user, hop.port), *through]


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _openssh_accepts(route: Route, number: int) -> bool:
    """Return whether OpenSSH accepts the host's key or certificate: then it tries to log in, with no method."""
    hop = route.hops[number]
    name = hop.name if hop.jump else destination(route.host)
    command = [*_ssh_to(route, number), "-oPreferredAuthentications=none", "--", name, "true"]
    said = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=route.host.connect_timeout * 3, check=False
    )
    return said.returncode == 0 or b"Permission denied (" in said.stderr
