"""A host of the inventory as a source of shards: how its sender is started, and what its ledger offers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from hosts.errors import ProtocolError
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from hosts.transport.openssh import AES_CIPHER, ssh_command
from hosts.transport.payload import current_payload
from hosts.transport.words import python_program, remote_command
from remote.shared.messages.extract import (
    Delivered,
    FreedRequest,
    IndicesResult,
    ShardBatch,
    ShardRow,
    ShardsRequest,
    ShardsResult,
)
from remote.shared.messages.transfer import FetchSource
from remote.shared.transfer.hostpull import Compress, Source
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
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass
class Offer:
    """What a host has, as far as its ledger has been read."""

    rows: list[ShardRow] = field(default_factory=list)
    result: ShardsResult | None = None


def source_of(host: Host, run: str, folder: Path, *, codec: bool) -> Source:
    """How `host` is pulled from; `folder` (0700) takes the private ssh configuration.

    With `codec` the sender can compress, and read what is compressed at rest: it then starts with the packages of
    its Python, which takes longer.
    """
    bare = [] if codec else ["-I", "-S"]
    sender = python_program(host, SOURCE, *bare)
    if host.connection == "local":
        sender[0] = str(Path(sender[0]).expanduser())
        command = sender
    else:
        command = [*ssh_command(host, folder), remote_command(sender)]
    payload = f"{host.workdir}/payloads/{current_payload().digest}" if codec else ""
    return Source(host.name, command, f"{host.workdir}/runs/{run}/shards", payload)


def fetch_source(host: Host, destination: Host, run: str, rows: list[ShardRow], compress: Compress) -> FetchSource:
    """How the host `destination` pulls these rows from `host`."""
    codec = compress != "never" or any(row.stored == "compressed" for row in rows)
    sender = python_program(host, SOURCE, *([] if codec else ["-I", "-S"]))
    payload = f"{host.workdir}/payloads/{current_payload().digest}" if codec else ""
    command = sender if host.name == destination.name else [*_login(host), remote_command(sender)]
    return FetchSource(
        name=host.name, command=command, root=f"{host.workdir}/runs/{run}/shards", payload=payload, rows=rows
    )


def _login(host: Host) -> list[str]:
    """How another host reaches this one: by the same address, with that host's keys."""
    options = [f"-o{key}={value}" for key, value in _OPTIONS.items()]
    user = ["-l", host.user] if host.user else []
    port = ["-p", str(host.ssh_port)] if host.ssh_port else []
    return ["ssh", *options, f"-oConnectTimeout={host.connect_timeout:.0f}", *user, *port, host.address or host.name]


def offer(backend: Backend, run: str, after: int, records: int) -> Offer:
    """Rows of the host's ledger that are newer than the cursor `after`, of a dataset of so many `records`.

    Raises ProtocolError where the host offers what cannot be a record of this dataset, or one twice.
    """
    found = Offer()
    seen: set[int] = set()

    def take(value: dict[str, object]) -> None:
        for row in ShardBatch.model_validate(value).rows:
            if row.index in seen or not _can_be(row, records):
                raise ProtocolError(f"The host offers what is no record of a dataset of {records:,}: {row!r}."[:500])
            seen.add(row.index)
            found.rows.append(row)

    request = ShardsRequest(run=run, after=after)
    found.result = backend.call("shards", request, ShardsResult, deadline=LISTING_DEADLINE_SECONDS, on_item=take)
    return found


def _can_be(row: ShardRow, records: int) -> bool:
    return 0 <= row.index < records and row.rows > 0 and row.size_bytes > 0 and bool(_DIGEST.fullmatch(row.xxh3))


def free(backend: Backend, run: str, records: list[Delivered]) -> IndicesResult:
    """Let the host delete what is delivered; what it has made anew since, with another digest, stays."""
    request = FreedRequest(run=run, records=records)
    return backend.call("freed", request, IndicesResult, deadline=FREEING_DEADLINE_SECONDS)
