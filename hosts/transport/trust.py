"""`inv trust`: show the key that a host presents and, when it is accepted, remember it in known_hosts."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import paramiko
from filelock import FileLock

from hosts.errors import HostKeyError, HostUnreachableError
from hosts.inventory.model import Host
from hosts.transport.ssh import explain, known_hosts_file, known_hosts_name, new_connection


@dataclass(frozen=True)
class PresentedKey:
    """What a host's sshd presents, before anybody has trusted it."""

    name: str
    """As known_hosts names the host."""
    kind: str
    base64: str
    known: bool
    """Whether known_hosts already holds exactly this key."""

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it: SHA256:…"""
        digest = hashlib.sha256(base64.b64decode(self.base64)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def presented_key(host: Host) -> PresentedKey:
    """Connect as far as the key exchange and return the key; nothing is sent but the handshake."""
    connection = new_connection(host)
    where = f"{connection.user}@{connection.host}:{connection.port}"
    try:
        gateway = connection.open_gateway() if connection.gateway else None
        sock = gateway or socket.create_connection((connection.host, connection.port), host.connect_timeout)
        transport = paramiko.Transport(sock)
        transport.start_client(timeout=host.connect_timeout)
        key = transport.get_remote_server_key()
        transport.close()
    except Exception as error:
        raise explain(error, where, host) from error
    name = known_hosts_name(connection.host, host)
    return PresentedKey(name, key.get_name(), key.get_base64(), _is_known(host, name, key))


def _is_known(host: Host, name: str, key: paramiko.PKey) -> bool:
    path = known_hosts_file(host)
    entries = paramiko.HostKeys(str(path)) if path.exists() else paramiko.HostKeys()
    known = entries.lookup(name)
    if known is None:
        return False
    if key.get_name() in known and not entries.check(name, key):
        raise HostKeyError(
            f"{path} holds another {key.get_name()} key for {name}.",
            remedy=f"If the box was reinstalled: ssh-keygen -f {path} -R {name}, then trust it again.",
        )
    return entries.check(name, key)


def remember(host: Host, key: PresentedKey) -> Path:
    """Append the key to known_hosts (0600, under a lock) and return the file's path."""
    path = known_hosts_file(host)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with FileLock(f"{path}.lock"):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "a+") as stream:
                stream.seek(0)
                text = stream.read()
                newline = "" if not text or text.endswith("\n") else "\n"
                stream.write(f"{newline}{key.name} {key.kind} {key.base64}\n")
    except OSError as error:
        raise HostUnreachableError(f"{path} could not be written: {error.strerror}.") from error
    return path
