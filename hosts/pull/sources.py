"""The hosts of the inventory as sources of records: how each is reached, what it offers, how it frees.

Runs on the laptop. `LaptopOrigin` is the engine's host when it runs here; a `Source` alone is what the verb `fetch`
needs to reach the same host from another one.
"""

from __future__ import annotations

from pathlib import Path

from hosts.inventory.model import Host
from hosts.plan.plan import Plan
from hosts.transport.backend import Backend
from hosts.transport.openssh import AES_CIPHER, ssh_command
from hosts.transport.payload import current_payload
from hosts.transport.words import python_program, remote_command
from remote.shared.messages.extract import (
    Delivered,
    FreedRequest,
    IndicesResult,
    ShardBatch,
    ShardsRequest,
    ShardsResult,
)
from remote.shared.messages.transfer import Source
from remote.shared.transfer.bounds import Bounds, Listing
from remote.shared.transfer.engine import Offer
from remote.shared.transfer.stream import SOURCE

LISTING_DEADLINE_SECONDS = 300.0
FREEING_DEADLINE_SECONDS = 600.0

_OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "3",
    "Compression": "no",
    "Ciphers": f"^{AES_CIPHER}",
}
_BARE = ["-I", "-S"]
_VERB = (
    "import os, sys; sys.path.insert(0, os.path.expanduser(sys.argv[1])); os.umask(0o077); "
    "from remote.__main__ import main; sys.exit(main([]))"
)
"""Runs the verb that stdin names, from a payload that is there already."""


class LaptopOrigin:
    """A host that the laptop itself pulls from, through its own connection."""

    def __init__(self, backend: Backend, source: Source, bounds: Bounds) -> None:
        self.source = source
        self._backend = backend
        self._bounds = bounds

    def offers(self, after: int) -> Offer:
        """Rows of the host's ledger that are newer than the cursor `after`, each within the run's bounds."""
        listing = Listing(self._bounds)
        result = self._backend.call(
            "shards",
            ShardsRequest(identity=self._bounds.identity, after=after),
            ShardsResult,
            deadline=LISTING_DEADLINE_SECONDS,
            on_item=lambda value: listing.take(ShardBatch.model_validate(value).rows),
        )
        return Offer(listing.rows, result.cursor, result.status)

    def free(self, records: list[Delivered]) -> IndicesResult:
        """Let the host delete what is delivered; a record that it has made anew since stays."""
        request = FreedRequest(identity=self._bounds.identity, records=records)
        return self._backend.call("freed", request, IndicesResult, deadline=FREEING_DEADLINE_SECONDS)


def source_for_laptop(host: Host, plan: Plan, bounds: Bounds, folder: Path) -> Source:
    """How the laptop reaches `host`; `folder` (0700) takes the private ssh configuration."""
    local = host.connection == "local"
    return _source(host, plan, bounds, [] if local else ssh_command(host, folder), local=local)


def source_for_host(host: Host, plan: Plan, bounds: Bounds, destination: Host) -> Source:
    """How the host `destination` reaches `host`: by the same address, with its own keys and known hosts."""
    local = host.name == destination.name
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
    options = [f"-o{key}={value}" for key, value in _OPTIONS.items()]
    user = ["-l", host.user] if host.user else []
    port = ["-p", str(host.ssh_port)] if host.ssh_port else []
    return ["ssh", *options, f"-oConnectTimeout={host.connect_timeout:.0f}", *user, *port, host.address or host.name]
