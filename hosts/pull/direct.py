"""`inv pull --to HOST:FOLDER`: one host of the inventory pulls from the others, directly. Runs on the laptop.

The bytes never pass through here: the destination runs the verb `fetch` and logs in to the sources with its own keys
and known hosts. The laptop brings the dataset, says what there is to pull, and lets the sources free what has arrived.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from hosts.errors import HostError, ProtocolError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.plan.lengths import read_manifest
from hosts.plan.plan import Plan
from hosts.pull.pull import HostTally, Tallies, Wish
from hosts.pull.push import push
from hosts.pull.sources import free, offer
from hosts.transport.backend import Backend
from hosts.transport.openssh import AES_CIPHER
from hosts.transport.payload import current_payload
from remote.messages.extract import ShardRow
from remote.messages.transfer import FetchNews, FetchRequest, FetchResult, FetchSource, Store
from remote.transfer.hostpull import HostReport
from remote.transfer.stream import SOURCE

_OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "3",
    "Compression": "no",
    "Ciphers": f"^{AES_CIPHER}",
}


@dataclass(frozen=True)
class Place:
    """A folder on a host of the inventory."""

    host: Host
    folder: str


def place_of(fleet: Fleet, to: str) -> Place | None:
    """The host and the folder, if `to` is `HOST:FOLDER` with a host of the inventory."""
    name, colon, folder = to.partition(":")
    host = fleet.inventory.hosts.get(name)
    return Place(host, folder) if colon and host is not None and folder else None


def pull_to(
    fleet: Fleet, destination: Backend, folder: str, wish: Wish, plan: Plan, store: Store, tallies: Tallies
) -> tuple[list[Outcome[HostTally]], FetchResult]:
    """Pull what every host of `fleet` offers into `folder` on the destination; `tallies` tell how far it is.

    Raises HostError or ConnectionLostError where the destination itself fails.
    """
    dataset = f"{folder.rstrip('/')}/roost/dataset-{plan.identity.dataset[:16]}"
    push(destination, Path(plan.dataset), dataset)
    records = read_manifest(Path(plan.dataset)).records
    offers = fleet.each(lambda backend: offer(backend, wish.run, 0, records).rows)
    offered = {outcome.host.name: outcome.value for outcome in offers if outcome.value is not None}
    request = FetchRequest(
        to=folder,
        run=wish.run,
        dataset=dataset,
        identity=plan.identity,
        records=records,
        store=store,
        streams=wish.limits.streams,
        bytes_per_second=wish.limits.bytes_per_second,
        compress=wish.limits.compress,
        check=wish.check or wish.free,
        sources=[
            _source(backend_host, destination.host, wish, offered[backend_host.name])
            for backend_host in fleet.hosts
            if backend_host.name in offered
        ],
    )
    asked = {name: {row.index for row in rows} for name, rows in offered.items()}
    durable: dict[str, set[int]] = {name: set() for name in offered}

    def hear(value: dict[str, object]) -> None:
        news = FetchNews.model_validate(value)
        done = {*news.present, *news.delivered}
        if news.name not in asked or not done <= asked[news.name]:
            raise ProtocolError(f"The host tells of records of {news.name!r} that it was not asked to pull."[:500])
        durable[news.name] |= done
        _update(tallies[news.name], news, len(offered[news.name]))

    result = destination.call("fetch", request, FetchResult, deadline=None, on_item=hear)
    if wish.free:
        _free(fleet, wish, durable, tallies)
    return [_outcome(outcome, tallies) for outcome in offers], result


def _source(host: Host, destination: Host, wish: Wish, rows: list[ShardRow]) -> FetchSource:
    codec = wish.limits.compress != "never" or any(row.stored == "compressed" for row in rows)
    sender = [*shlex.split(host.exec), host.python, *([] if codec else ["-I", "-S"]), "-c", SOURCE]
    payload = f"{host.workdir}/payloads/{current_payload().digest}" if codec else ""
    command = sender if host.name == destination.name else [*_login(host), shlex.join(sender)]
    return FetchSource(
        name=host.name, command=command, root=f"{host.workdir}/runs/{wish.run}/shards", payload=payload, rows=rows
    )


def _login(host: Host) -> list[str]:
    """How another host reaches this one: by the same address, with that host's keys."""
    options = [f"-o{key}={value}" for key, value in _OPTIONS.items()]
    user = ["-l", host.user] if host.user else []
    port = ["-p", str(host.ssh_port)] if host.ssh_port else []
    return ["ssh", *options, f"-oConnectTimeout={host.connect_timeout:.0f}", *user, *port, host.address or host.name]


def _update(tally: HostTally, news: FetchNews, offered: int) -> None:
    told = news.report
    if told is None:
        return
    report = tally.report or HostReport(news.name, tally.tally)
    tally.report = report
    tally.offered, tally.present, tally.wanted_bytes = offered, told.present, told.wanted_bytes
    tally.tally.wire_bytes, tally.tally.plain_bytes = told.wire_bytes, told.plain_bytes
    tally.tally.kept_bytes = told.kept_bytes
    report.delivered, report.delivered_bytes = told.delivered, told.delivered_bytes
    report.failed, report.streams, report.seconds = told.failed, told.streams, told.seconds
    report.error = HostError(told.error, remedy=told.remedy) if told.error else None


def _free(fleet: Fleet, wish: Wish, durable: dict[str, set[int]], tallies: Tallies) -> None:
    def tell(backend: Backend) -> None:
        indices = durable.get(backend.host.name)
        if indices:
            freed = free(backend, wish.run, sorted(indices))
            tallies[backend.host.name].freed = freed.records
            tallies[backend.host.name].freed_bytes = freed.freed_bytes

    for outcome in fleet.each(tell):
        report = tallies[outcome.host.name].report
        if outcome.error is not None and report is not None:
            report.error = outcome.error


def _outcome(offered: Outcome[list[ShardRow]], tallies: Tallies) -> Outcome[HostTally]:
    tally = tallies[offered.host.name]
    error = offered.error or (tally.report.error if tally.report else None)
    return Outcome(offered.host, None if error else tally, error)
