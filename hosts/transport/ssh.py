"""A host over SSH. OpenSSH resolves its settings; Fabric connects, or OpenSSH if Fabric cannot follow the settings.

`ssh: auto | fabric | openssh` of the inventory decides; `inv doctor` says which one carries a host, and why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from dataclasses import dataclass
from functools import cache

from hosts.errors import HostUnreachableError
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from hosts.transport.keys import PLAIN_KINDS, agent_keys, kind_of, read_identity
from hosts.transport.over_fabric import FabricBackend
from hosts.transport.over_openssh import OpenSshBackend
from hosts.transport.process import Process
from hosts.transport.settings import Hop, Route, UnknownTokenError, resolve


@dataclass(frozen=True)
class Choice:
    """The library that carries a host's control connection, and the reason, as the end of a sentence."""

    openssh: bool
    why: str


class SshBackend(Backend):
    """A host over SSH, whose settings are resolved at the first call. A failure then is an error of this host alone."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._carrier: Backend | None = None
        self._lock = threading.Lock()
        self._route: Route | None = None

    @property
    def route(self) -> Route:
        """The way to the host, for which OpenSSH is asked once. Raises HostUnreachableError."""
        with self._lock:
            return self._resolved()

    def open(self, argv: list[str]) -> Process:
        with self._lock:
            if self._carrier is None:
                route = self._resolved()
                kind = OpenSshBackend if choose(route).openssh else FabricBackend
                self._carrier = kind(self.host, route)
            carrier = self._carrier
        return carrier.open(argv)

    def close(self) -> None:
        """End the connections without waiting for a connection that another thread's call is just opening."""
        carrier = self._carrier
        if carrier is not None:
            carrier.close()

    def _resolved(self) -> Route:
        if self._route is None:
            self._route = resolve(self.host)
        return self._route


def choose(route: Route) -> Choice:
    """Return the library that carries this host's connection. Reads files and asks the agent; connects to no host.

    Raises HostUnreachableError if the inventory says `fabric` and a setting has a token that only OpenSSH expands.
    """
    wish = route.host.ssh
    if wish == "openssh":
        return Choice(True, "the inventory says so")
    try:
        reasons = [reason for hop in route.hops if (reason := _why_not_fabric(hop))]
    except UnknownTokenError as error:
        if wish == "fabric":
            raise HostUnreachableError(
                f"Fabric cannot reach {route.target.where}: {error}.", remedy="Set `ssh: openssh` for this host."
            ) from error
        reasons = [str(error)]
    if wish == "fabric":
        return Choice(False, "the inventory says so")
    return Choice(bool(reasons), reasons[0] if reasons else "nothing in the configuration needs OpenSSH itself")


def _why_not_fabric(hop: Hop) -> str:
    """Return the first setting that Fabric (paramiko) cannot follow; "" if there is none."""
    return _of_options(hop) or _of_host_keys(hop) or _of_identities(hop)


def _of_options(hop: Hop) -> str:
    for keyword in ("user", "hostkeyalias"):
        if "%" in hop.option(keyword):
            return f"{keyword} has a % that versions of OpenSSH read differently"
    for keyword, name in _ONLY_OPENSSH.items():
        if hop.option(keyword) not in {"", "no", "false"}:
            return f"{name} is set"
    if hop.option("pubkeyauthentication") in {"no", "false"}:
        return "PubkeyAuthentication is off"
    if hop.option("addressfamily") not in {"", "any"}:
        return "AddressFamily is set"
    if hop.is_on("gssapiauthentication") and has_ticket():
        return "GSSAPIAuthentication is on and there is a Kerberos ticket"
    return ""


_ONLY_OPENSSH = {
    "proxycommand": "ProxyCommand",
    "proxyusefdpass": "ProxyUseFdpass",
    "knownhostscommand": "KnownHostsCommand",
    "revokedhostkeys": "RevokedHostKeys",
    "certificatefile": "CertificateFile",
    "pkcs11provider": "PKCS11Provider",
    "identityagent": "IdentityAgent",
    "hostbasedauthentication": "HostbasedAuthentication",
    "canonicalizehostname": "CanonicalizeHostname",
    "bindaddress": "BindAddress",
    "bindinterface": "BindInterface",
}


def _of_host_keys(hop: Hop) -> str:
    known = hop.known()
    authority = known.authority(hop.names)
    if authority is not None:
        return f"{authority.place} is a @cert-authority for it"
    kinds = known.kinds(hop.names)
    if kinds and not set(kinds) & set(PLAIN_KINDS):
        return f"its known host key is of the type {kinds[0]}"
    return ""


def _of_identities(hop: Hop) -> str:
    for path in hop.paths("identityfile"):
        if path.with_name(f"{path.name}-cert.pub").exists():
            return f"{path} has a certificate"
        kind = kind_of(read_identity(path))
        if kind and kind not in PLAIN_KINDS:
            return f"{path} is a key of the type {kind}"
    if not hop.is_on("identitiesonly"):
        for key in agent_keys():
            if key.get_name() not in PLAIN_KINDS:
                return f"the agent holds a key of the type {key.get_name()}"
    return ""


@cache
def has_ticket() -> bool:
    """Return whether the person has a valid Kerberos ticket (`klist -s`)."""
    if shutil.which("klist") is None:
        return False
    said = subprocess.run(["klist", "-s"], check=False, stdin=subprocess.DEVNULL, capture_output=True, env=os.environ)
    return said.returncode == 0
