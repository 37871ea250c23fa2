"""A host over OpenSSH's own `ssh`, for what Fabric cannot do: certificates, security keys, GSSAPI, odd proxies.

Each host has one ControlMaster of Roost's own, whose socket is in a folder of this process (0700). Every call is a
session of that master. The master runs in the background and ends 30 s after its last session, even if this process is
killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import threading

from hosts.errors import ConnectionLostError, HostUnreachableError, RoostError
from hosts.inventory.model import Host
from hosts.transport.admission import login
from hosts.transport.backend import Backend
from hosts.transport.local import LocalProcess
from hosts.transport.openssh import destination, ssh_arguments
from hosts.transport.process import Process
from hosts.transport.sentences import of_openssh
from hosts.transport.settings import Hop, Route, private_folder
from hosts.transport.words import remote_command

LOGIN_SECONDS = 45.0
PERSIST_SECONDS = 30
STATUS_OF_SSH = 255
"""The exit status of `ssh` if `ssh` itself failed, and not the remote command."""


class OpenSshBackend(Backend):
    """Logs in at the first call, and again at the next call after the connection broke."""

    def __init__(self, host: Host, route: Route) -> None:
        super().__init__(host)
        self._route = route
        name = hashlib.sha256(f"{id(self)} {host.name}".encode()).hexdigest()[:12]
        self._socket = private_folder() / f"m-{name}"
        self._lock = threading.Lock()

    def open(self, argv: list[str]) -> Process:
        with self._lock:
            if not self._socket.exists():
                login(self._route.hops, self._log_in)
        # If the server allows no further session on this connection, `ssh` opens a connection of its own.
        return OpenSshProcess([*self._ssh(), "--", destination(self.host), remote_command(argv)])

    def close(self) -> None:
        """End the master and every session on it."""
        if self._socket.exists():
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    [*self._ssh(), "-O", "exit", "--", destination(self.host)],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=5,
                    check=False,
                )

    def _ssh(self) -> list[str]:
        return ["ssh", *ssh_arguments(self.host, self._route.config), "-T", "-S", str(self._socket)]

    def _log_in(self) -> None:
        """Start the master; it goes to the background once it is logged in."""
        route, timeout = self._route, self.host.connect_timeout
        patience = timeout * len(route.hops) + LOGIN_SECONDS
        through = route.target.option("proxyjump") or route.target.option("proxycommand")
        options = [
            "-oControlMaster=yes",
            f"-oControlPersist={PERSIST_SECONDS}",
            # Behind a jump host the banner comes after the login there, which may be slow.
            *([f"-oConnectTimeout={round(patience)}"] if through else []),
        ]
        try:
            said = subprocess.run(
                [*self._ssh(), *options, "-f", "-N", "--", destination(self.host)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=patience + 5,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise HostUnreachableError(
                f"{route.target.where} did not finish the login within {patience:.0f} s.",
                remedy="Type ssh -v with that host: its output shows which step waits.",
            ) from error
        if said.returncode != 0:
            raise explain(said.stderr.decode("utf-8", "replace"), route)


def explain(said: str, route: Route) -> RoostError:
    """Return the output of `ssh` as one sentence about the server in it."""
    return of_openssh(said, _hop_of(said, route), route.host.name, route.host.connect_timeout)


def _hop_of(said: str, route: Route) -> Hop:
    """Return the first jump host that the message names, if the connection broke there; else the host itself."""
    if "UNKNOWN port 65535" in said:
        for hop in route.hops[:-1]:
            if any(mark in said for mark in _marks(hop)):
                return hop
    return route.target


def _marks(hop: Hop) -> tuple[str, ...]:
    """Return the names that `ssh` uses for a server in its messages."""
    return (
        f"{hop.user}@{hop.hostname}:",
        f" {hop.names[0]} ",
        f"host {hop.hostname} port {hop.port}:",
        f"hostname {hop.hostname}:",
        f"by {hop.hostname} port {hop.port}",
    )


class OpenSshProcess(LocalProcess):
    """A session of the master: an `ssh` subprocess, whose exit status tells if the connection broke."""

    def wait(self, timeout: float) -> int:
        status = super().wait(timeout)
        if status == STATUS_OF_SSH:
            raise ConnectionLostError(f"The connection broke: {self.stderr_tail()[-300:] or 'ssh said nothing'}.")
        return status

    def close(self) -> None:
        super().close()
        self.end()
