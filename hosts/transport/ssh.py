"""A host over SSH: one Fabric connection, any number of channels, every step with a deadline.

What Fabric leaves open and this module sets (each seen to matter): TCP_NODELAY (a command falls from 50 to 12 ms),
known hosts enforced (Fabric adds unknown keys and accepts swapped ones), timeouts on connect, banner, authentication
and on opening a channel (a frozen host blocks for ever otherwise), raw channels instead of `Connection.run`
(its capture is quadratic in the output). OpenSSH's own configuration is honoured: aliases, ProxyJump, keys.
"""

from __future__ import annotations

import logging
import shlex
import socket
import threading
from pathlib import Path
from typing import Any

import paramiko
from fabric import Config, Connection
from paramiko.ssh_exception import (
    AuthenticationException,
    BadHostKeyException,
    NoValidConnectionsError,
    PasswordRequiredException,
    SSHException,
)

from hosts.errors import AuthenticationError, HostKeyError, HostUnreachableError, RoostError
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from hosts.transport.process import Process

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # it logs tracebacks of what is raised here as a sentence

KEEPALIVE_SECONDS = 15
CHANNEL_TIMEOUT_SECONDS = 20.0
_SILENCE = ("No existing session", "Error reading SSH protocol banner")
"""What paramiko says where the kernel took the connection and sshd, frozen, did not."""


class SshBackend(Backend):
    """Opens its connection at the first call, and again at the next call after it broke."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def open(self, argv: list[str]) -> Process:
        transport = self._transport()
        try:
            channel = transport.open_session(timeout=CHANNEL_TIMEOUT_SECONDS)
            channel.exec_command(shlex.join(argv))
        except (SSHException, OSError, EOFError) as error:
            self.close()
            raise HostUnreachableError(
                f"The SSH session could not start a command: {error or type(error).__name__}.",
                remedy="The host may be frozen or out of processes; look at it by hand.",
            ) from error
        return SshProcess(channel)

    def close(self) -> None:
        """End the connection; one that another thread is just opening is that call's own, and is not waited for."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        finally:
            self._lock.release()

    def _transport(self) -> paramiko.Transport:
        with self._lock:
            if self._connection is None or not self._connection.is_connected:
                self._connection = connect(self.host)
            transport: paramiko.Transport = self._connection.transport
            return transport


def connect(host: Host) -> Connection:
    """Return an open Fabric connection; raise one sentence where that fails."""
    connection = new_connection(host)
    where = f"{connection.user}@{connection.host}:{connection.port}"
    try:
        connection.open()
    except RoostError:
        raise
    except Exception as error:
        connection.close()
        raise explain(error, where, host) from error
    transport = connection.transport
    transport.set_keepalive(KEEPALIVE_SECONDS)
    if isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def new_connection(host: Host) -> Connection:
    """A Fabric connection, not yet open, that knows this host's keys and accepts no other."""
    connection = Connection(
        host.address or host.name,
        user=host.user,
        port=host.ssh_port,
        config=_config(host),
        connect_timeout=host.connect_timeout,
        connect_kwargs=_connect_arguments(host),
    )
    _enforce_known_hosts(connection.client, host)
    gateway = connection.gateway
    while isinstance(gateway, Connection):
        _enforce_known_hosts(gateway.client, host)
        gateway = gateway.gateway
    return connection


def _config(host: Host) -> Config:
    path = Path(host.ssh_config).expanduser()
    return Config(runtime_ssh_path=str(path)) if path.exists() else Config(lazy=True)


def _connect_arguments(host: Host) -> dict[str, Any]:
    timeout = host.connect_timeout
    arguments: dict[str, Any] = {
        "banner_timeout": timeout,
        "auth_timeout": timeout,
        "channel_timeout": CHANNEL_TIMEOUT_SECONDS,
    }
    if host.identity_file:
        arguments["key_filename"] = str(Path(host.identity_file).expanduser())
        arguments["look_for_keys"] = False
    return arguments


def _enforce_known_hosts(client: paramiko.SSHClient, host: Host) -> None:
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    for path in (Path("/etc/ssh/ssh_known_hosts"), known_hosts_file(host)):
        if path.exists():
            client.load_system_host_keys(str(path))


def known_hosts_file(host: Host) -> Path:
    """The file that `inv trust` adds to and every connection is checked against."""
    return Path(host.known_hosts).expanduser()


def explain(error: Exception, where: str, host: Host) -> RoostError:
    """Every way in which connecting fails, as one sentence with its remedy."""
    if isinstance(error, BadHostKeyException):
        return HostKeyError(
            f"The host key of {where} has CHANGED since it was trusted; nothing was sent.",
            remedy=f"If the box was reinstalled: ssh-keygen -f {known_hosts_file(host)} -R "
            f"{known_hosts_name(error.hostname, host)}, then inv trust --host {host.name}.",
        )
    if isinstance(error, PasswordRequiredException):
        return AuthenticationError(
            f"The key for {where} has a passphrase and no agent offers it.", remedy="Run ssh-add first."
        )
    if isinstance(error, AuthenticationException) and "saw EOF" not in str(error):
        return AuthenticationError(
            f"{where} refused the login: {str(error).rstrip('.')}.",
            remedy="Check `user` and `identity_file`, or ssh-add the key.",
        )
    if isinstance(error, SSHException) and "not found in known_hosts" in str(error):
        return HostKeyError(
            f"The host key of {where} is not known; nothing was sent.",
            remedy=f"Compare its fingerprint and accept it: inv trust --host {host.name}.",
        )
    return _unreachable(error, where, host)


def _unreachable(error: Exception, where: str, host: Host) -> HostUnreachableError:
    """No SSH server spoke: refused at once, or nothing came within the connect timeout.

    Where every address of a name was tried, the first one's reason stands for all.
    """
    cause = next(iter(error.errors.values())) if isinstance(error, NoValidConnectionsError) else error
    if isinstance(cause, ConnectionRefusedError):
        return HostUnreachableError(
            f"{where} could not be reached: connection refused, so no SSH server listens on that port.",
            remedy="Start sshd there, or correct the host's `address` and `ssh_port` in the inventory.",
        )
    if isinstance(cause, socket.gaierror):
        return HostUnreachableError(
            f"{where} could not be reached: the name does not resolve.",
            remedy="Correct the host's `address` in the inventory, or its alias in `ssh_config`.",
        )
    waited = isinstance(cause, TimeoutError) or str(cause).startswith(_SILENCE)
    within = f" within {host.connect_timeout:.0f} s" if waited else ""
    return HostUnreachableError(
        f"{where} could not be reached{within}: {_reason(cause)}.",
        remedy="Check the address, the network and that sshd runs there.",
    )


def known_hosts_name(address: str, host: Host) -> str:
    """How known_hosts names it: `[address]:port` where the port is not 22."""
    return address if (host.ssh_port or 22) == 22 else f"[{address}]:{host.ssh_port}"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror.lower()}: {error.filename}" if error.filename else error.strerror.lower()
    if str(error).startswith(_SILENCE):
        return "the connection was taken and no SSH server spoke"
    return str(error).rstrip(".") or type(error).__name__


class SshProcess(Process):
    """A command on an SSH channel without a terminal."""

    def __init__(self, channel: paramiko.Channel) -> None:
        super().__init__()
        self._channel = channel
        self._drain = threading.Thread(target=self._drain_stderr, daemon=True)
        self._drain.start()

    def write(self, data: bytes) -> None:
        self._channel.settimeout(CHANNEL_TIMEOUT_SECONDS)
        self._channel.sendall(data)

    def close_stdin(self) -> None:
        self._channel.shutdown_write()

    def read(self, size: int, timeout: float | None) -> bytes:
        self._channel.settimeout(timeout)
        return self._channel.recv(size)

    def wait(self, timeout: float) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError
        self._drain.join(1.0)
        return self._channel.exit_status

    def close(self) -> None:
        self._channel.close()

    def _drain_stderr(self) -> None:
        try:
            while chunk := self._channel.recv_stderr(65536):
                self._keep_stderr(chunk)
        except OSError:
            return
