"""A host over Fabric: SSH connections inside this process, any number of calls at once, every step with a deadline.

Fabric's defaults do not suffice, so this module sets: TCP_NODELAY (a command takes 12 ms instead of 50); known hosts
(Fabric adds unknown keys and accepts changed keys); timeouts for the connection, the banner, the authentication and the
opening of a channel (a frozen host would block for ever); raw channels instead of `Connection.run`, whose capture takes
time quadratic in the output. Every setting comes from `settings.resolve`, and so from OpenSSH itself.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import paramiko
from fabric import Config, Connection
from paramiko.buffered_pipe import BufferedPipe
from paramiko.ssh_exception import ChannelException, SSHException

from hosts.errors import ConnectionLostError, HostUnreachableError, RoostError
from hosts.inventory.model import Host
from hosts.transport.admission import login
from hosts.transport.backend import Backend
from hosts.transport.keys import OfferedKeys
from hosts.transport.pool import Pool, PoolFullError
from hosts.transport.process import Process
from hosts.transport.sentences import bad_key, dropped, of_paramiko
from hosts.transport.settings import Hop, Route
from hosts.transport.words import remote_command
from remote.shared.supervised.threads import DeadlineError, Thread

logging.getLogger("paramiko").setLevel(
    logging.CRITICAL
)  # it logs tracebacks of errors that Roost raises as one sentence

KEEPALIVE_SECONDS = 15
LOGIN_SECONDS = 45.0
"""For the authentication and, again, for the opening of a channel: slow PAM modules take up to 20 s for each."""
MOST_UNREAD_BYTES = 64 << 20
"""Unread bytes of one channel: 32 times the window that the server was given."""


class FabricBackend(Backend):
    """Opens a connection at the first call, and another if the server allows no more sessions on the first."""

    def __init__(self, host: Host, route: Route) -> None:
        super().__init__(host)
        self._pool = Pool(lambda: Link(route))

    def open(self, argv: list[str]) -> Process:
        command = remote_command(argv)

        def start(link: Link, done: Callable[[], None]) -> Process:
            return link.start(command, done)

        try:
            return self._pool.use(start)
        except PoolFullError as error:
            raise HostUnreachableError(
                f"The host's SSH server allows {error.sessions} sessions on a connection (MaxSessions), and all are "
                f"in use.",
                remedy="Try again when the other commands have ended, or raise MaxSessions in its sshd_config.",
            ) from error

    def close(self) -> None:
        self._pool.close()


class Link:
    """One SSH connection to the host, with the connections to its jump hosts."""

    def __init__(self, route: Route) -> None:
        self._connections: list[Connection] = []
        self._opening = threading.Lock()
        """Channels are opened one at a time: paramiko keeps a single error for a connection, so the second of two
        simultaneous refusals would look like a broken connection.
        """
        try:
            for hop in route.hops:
                self._connections.append(login([hop], partial(self._connect, route, hop)))
        except BaseException:
            self.close()
            raise
        self._transport: paramiko.Transport = self._connections[-1].transport

    @property
    def is_alive(self) -> bool:
        """Return whether the connection can take another channel, as far as this end knows."""
        return self._transport.is_active()

    def start(self, command: str, done: Callable[[], None]) -> Process:
        """Run a command on a new channel; `done` is called when its process is closed.

        Raises PoolFullError if the server refuses one more session.
        """
        try:
            with self._opening:
                channel = self._transport.open_session(timeout=LOGIN_SECONDS)
        except ChannelException as error:
            raise PoolFullError from error
        except (SSHException, OSError, EOFError) as error:
            raise self._no_command(error) from error
        process = SshProcess(channel, done)  # before any output can arrive, because it limits the unread bytes
        try:
            channel.exec_command(command)
        except (SSHException, OSError, EOFError) as error:
            with suppress(EOFError, OSError, SSHException):
                channel.close()
            raise self._no_command(error) from error
        return process

    def close(self) -> None:
        """End all connections, the host's own first."""
        for connection in reversed(self._connections):
            connection.close()

    def _no_command(self, error: Exception) -> HostUnreachableError:
        return HostUnreachableError(
            f"The SSH session could not start a command: {str(error).rstrip('.') or type(error).__name__}.",
            remedy="The host may be frozen or at its limit of processes. Log in with ssh to see.",
        )

    def _connect(self, route: Route, hop: Hop) -> Connection:
        """Log in to one hop, through the hops before it."""
        timeout = route.host.connect_timeout
        via = self._connections[-1] if self._connections else None
        connection = _new_connection(route, hop, via)
        try:
            connection.open()
        except RoostError:
            connection.client.close()
            raise
        except Exception as error:
            closed = _was_closed(connection.client)
            connection.client.close()
            if isinstance(error, SSHException) and closed:
                raise dropped(hop.where) from error
            raise of_paramiko(error, hop, route.host.name, timeout) from error
        transport = connection.transport
        transport.set_keepalive(KEEPALIVE_SECONDS)
        if isinstance(transport.sock, socket.socket) and transport.sock.family != socket.AF_UNIX:
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _new_connection(route: Route, hop: Hop, via: Connection | None) -> Connection:
    """Return a Fabric connection, not yet open, that accepts only the hop's known keys."""
    timeout = route.host.connect_timeout
    arguments: dict[str, Any] = {
        "banner_timeout": timeout,
        "auth_timeout": LOGIN_SECONDS,
        "channel_timeout": LOGIN_SECONDS,
        "transport_factory": lambda sock, **options: _transport(sock, hop, **options),
        "auth_strategy": OfferedKeys(hop),
    }
    if via is None and (command := hop.option("proxycommand")):
        arguments["sock"] = proxy_socket(hop.expanded(command))
    connection = Connection(
        hop.hostname,
        user=hop.user,
        port=hop.port,
        gateway=via,
        config=Config(lazy=True),
        connect_timeout=timeout,
        connect_kwargs=arguments,
    )
    connection.client.set_missing_host_key_policy(_KnownKeys(hop, route.host.name))
    return connection


class _KnownKeys(paramiko.MissingHostKeyPolicy):
    """Judges every key, because paramiko gets no known_hosts of its own."""

    def __init__(self, hop: Hop, name: str) -> None:
        self._hop = hop
        self._name = name

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        verdict = self._hop.known().judge(self._hop.names, key.asbytes())
        if verdict.judgement != "known":
            raise bad_key(self._hop, verdict, self._name)


def _transport(sock: Any, hop: Hop, **options: Any) -> paramiko.Transport:
    """Return a transport that asks for the known types of host key first, as OpenSSH does."""
    transport = paramiko.Transport(sock, **options)
    prefer_key_types(transport, hop)
    return transport


def prefer_key_types(transport: paramiko.Transport, hop: Hop) -> None:
    """Put the types of the hop's known keys first. Must be called before the key exchange."""
    choices = transport.get_security_options()
    known = [algorithm for kind in hop.known().kinds(hop.names) for algorithm in algorithms_of(kind)]
    first = [algorithm for algorithm in known if algorithm in choices.key_types]
    choices.key_types = [*first, *(other for other in choices.key_types if other not in first)]


def algorithms_of(kind: str) -> Sequence[str]:
    """Return the signature algorithms of a key type. RSA keys sign with SHA-2, because servers refuse SHA-1."""
    return ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)


def proxy_socket(command: str) -> socket.socket:
    """Start a ProxyCommand by the user's shell, as OpenSSH does, and return the socket to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        shell = os.environ.get("SHELL") or "/bin/sh"
        end = theirs.fileno()
        argv = [shell, "-c", f"exec {command}"]
        subprocess.Popen(argv, stdin=end, stdout=end, stderr=subprocess.DEVNULL, start_new_session=True)
    return ours


def _was_closed(client: paramiko.SSHClient) -> bool:
    """Return whether the server closed the connection before it sent anything, as sshd does at its MaxStartups."""
    transport = client.get_transport()
    if transport is None or transport.remote_version:
        return False
    sock = transport.sock
    if not isinstance(sock, socket.socket):
        return not transport.is_active() and not isinstance(transport.get_exception(), TimeoutError)
    try:
        sock.settimeout(0)
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class BoundedPipe(BufferedPipe):  # type: ignore[type-arg]  # generic in the stubs alone
    """A channel's unread bytes. If a server ignores its window, the connection ends."""

    def __init__(self) -> None:
        super().__init__()
        self.overflowed = False

    def feed(self, data: bytes | str) -> None:
        """Add received bytes. Called by paramiko's thread; an SSHException ends its connection."""
        if len(self) + len(data) > MOST_UNREAD_BYTES:
            self.overflowed = True
            raise SSHException(f"a channel has over {MOST_UNREAD_BYTES >> 20} MiB of unread bytes")
        super().feed(data)


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Raise ConnectionError instead of the EOFError that paramiko raises if the connection broke during a write."""
    try:
        yield
    except (EOFError, SSHException) as error:
        raise ConnectionResetError("the SSH connection broke") from error


class SshProcess(Process):
    """A command on an SSH channel without a terminal."""

    def __init__(self, channel: paramiko.Channel, done: Callable[[], None]) -> None:
        super().__init__()
        self._channel = channel
        self._done: Callable[[], None] | None = done
        self._out, self._err = BoundedPipe(), BoundedPipe()
        channel.in_buffer, channel.in_stderr_buffer = self._out, self._err
        self._drain = Thread(self._drain_stderr, "stderr")

    def write(self, data: bytes) -> None:
        self._channel.settimeout(LOGIN_SECONDS)
        with _as_os_error():
            self._channel.sendall(data)

    def close_stdin(self) -> None:
        with _as_os_error():
            self._channel.shutdown_write()

    def read(self, size: int, timeout: float | None) -> bytes:
        self._channel.settimeout(timeout)
        chunk = self._channel.recv(size)
        if not chunk and (self._out.overflowed or self._err.overflowed):
            raise ConnectionLostError(
                f"The host sent over {MOST_UNREAD_BYTES >> 20} MiB more than the SSH window allows, so the "
                "connection was closed.",
                remedy="The host's SSH server ignores flow control, so it is broken or hostile. Check which server "
                "listens on that port.",
            )
        return chunk

    def wait(self, timeout: float) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError
        with suppress(DeadlineError):
            self._drain.join(1.0)
        return self._channel.exit_status

    def close(self) -> None:
        with suppress(EOFError, OSError, SSHException):  # the connection may be gone already
            self._channel.close()
        done, self._done = self._done, None
        if done is not None:
            done()

    def _drain_stderr(self) -> None:
        try:
            while chunk := self._channel.recv_stderr(65536):
                self._keep_stderr(chunk)
        except OSError:
            return
