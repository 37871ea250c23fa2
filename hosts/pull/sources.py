"""The hosts of the inventory in a pull: how each is reached as a source, and a folder on a host as the destination.

Runs on the laptop. An origin is the engine's host if the engine runs here; a `Source` alone is what the verb `fetch`
needs to reach the same host from another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hosts.fleet import Fleet
from hosts.inventory.model import Host
from hosts.plan.plan import Plan
from hosts.transport.backend import Backend
from hosts.transport.openssh import AES_CIPHER, HARDENING, destination, login_options, ssh_command
from hosts.transport.payload import current_payload
from hosts.transport.words import python_program, remote_command
from remote.shared.messages.transfer import Source
from remote.shared.transfer.bounds import Bounds
from remote.shared.transfer.origin import Asked
from remote.shared.transfer.stream import SOURCE

CALL_SECONDS = 600.0
"""The deadline for listing a ledger or freeing shards."""

_CIPHERS = f"{AES_CIPHER},aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr"
"""OpenSSH's own ciphers with the fastest first; OpenSSH before 8.1 (RHEL 8) does not know the shorter form with `^`."""
_BARE = ["-I", "-S"]
_VERB = (
    "import os, sys; sys.path.insert(0, os.path.expanduser(sys.argv[1])); os.umask(0o077); "
    "from remote.__main__ import end, start; end(start([]))"
)
"""Runs the verb in the call on stdin, from a payload that is on the host already."""


@dataclass(frozen=True)
class Place:
    """A folder on a host of the inventory, as the destination of a pull."""

    host: Host
    folder: str

    def __str__(self) -> str:
        return f"{self.host.name}:{self.folder}"


def place_of(fleet: Fleet, to: str) -> Place | None:
    """Return the host and the folder if `to` is `HOST:FOLDER` with a host of the inventory, else None."""
    name, colon, folder = to.partition(":")
    host = fleet.inventory.hosts.get(name)
    return Place(host, folder) if colon and host is not None and folder else None


def laptop_origin(backend: Backend, plan: Plan, bounds: Bounds, folder: Path) -> Asked:
    """Return a host that the laptop pulls from, asked through the laptop's connection.

    The private ssh configuration of the bulk streams goes into `folder` (0700).
    """
    local = backend.host.connection == "local"
    login = [] if local else ssh_command(backend.host, folder)
    source = _source(backend.host, plan, bounds, login, local=local)
    return Asked(source, bounds, partial(backend.call, deadline=CALL_SECONDS))


def source_for_host(host: Host, plan: Plan, bounds: Bounds, from_host: Host) -> Source:
    """Return how `from_host` reaches `host`: by the same address, with its own keys and known hosts."""
    local = host.name == from_host.name
    return _source(host, plan, bounds, [] if local else _login(host), local=local)


def _source(host: Host, plan: Plan, bounds: Bounds, login: list[str], *, local: bool) -> Source:
    def command(argv: list[str]) -> list[str]:
        if not local:
            return [*login, remote_command(argv)]
        return [str(Path(argv[0]).expanduser()), *argv[1:]] if host.connection == "local" else argv

    payload = f"{host.workdir}/payloads/{current_payload().digest}"
    share = plan.share(host.name)
    return Source(
        name=host.name,
        sender=command(python_program(host, SOURCE, *_BARE)),
        codec_sender=command(python_program(host, SOURCE)),
        verbs=command([*python_program(host, _VERB), payload]),
        workdir=host.workdir,
        root=f"{host.workdir}/runs/{plan.run}/shards",
        payload=payload,
        share_records=share.records if share else 0,
        share_bytes=bounds.tensor_bytes(share.tokens) if share else 0,
    )


def _login(host: Host) -> list[str]:
    """Return the command of a host's own `ssh`, which reads that host's configuration and not the laptop's."""
    settings = [*HARDENING, f"Ciphers {_CIPHERS}", f"ConnectTimeout {max(1, round(host.connect_timeout))}"]
    options = [f"-o{setting.replace(' ', '=', 1)}" for setting in settings]
    return ["ssh", "-T", *options, *login_options(host.user, host.ssh_port), "--", destination(host)]
