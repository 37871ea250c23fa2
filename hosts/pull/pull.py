"""Shards of one run come back from many hosts at once, each host in a thread of its own. Runs on the laptop.

What a host's ledger offers and the destination lacks is pulled, hashed while it lands and delivered (fsync, rename,
the destination's ledger). With `follow` that goes on until the run is complete; with `free` a host deletes what is
durable here. Nothing is printed; whoever calls reads `Tallies` for progress.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hosts.fleet import Fleet, Outcome
from hosts.pull.freeing import Freeing
from hosts.pull.sources import Offer, offer, source_of
from hosts.transport.backend import Backend
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.transfer import Store
from remote.shared.transfer.delivery import Delivery
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.hostpull import HostPull, HostReport, Limits, Source, cannot_write
from remote.shared.transfer.lane import Tally
from remote.shared.transfer.rate import RateLimit
from remote.shared.transfer.space import Space

FOLLOW_SECONDS = 2.0
AT_WORK = ("running", "paused", "waiting")


@dataclass(frozen=True)
class Wish:
    """What a person asked for."""

    run: str
    limits: Limits = field(default_factory=Limits)
    follow: bool = False
    free: bool = False
    check: bool = False
    """Read again what was delivered earlier; what is not intact is pulled anew."""


@dataclass
class HostTally:
    """How far one host is; read while it changes."""

    offered: int = 0
    present: int = 0
    wanted_bytes: int = 0
    tally: Tally = field(default_factory=Tally)
    report: HostReport | None = None
    freed: int = 0
    freed_bytes: int = 0
    status: str = ""
    """Of the host's extractor."""
    given_up: set[tuple[int, str, Store]] = field(default_factory=set)
    """What was tried and did not come right, as `version_of` tells it: not tried again while following."""
    has_share: bool = True
    """Whether the run has anything to do with this host."""

    @property
    def arrived_bytes(self) -> int:
        """Received, or found right in what an earlier pull had left."""
        return self.tally.plain_bytes + self.tally.kept_bytes


Tallies = dict[str, HostTally]


def version_of(row: ShardRow) -> tuple[int, str, Store]:
    """A record as its host has it now: made anew, or compressed meanwhile, it is another one."""
    return row.index, row.xxh3, row.stored


def changed(tried: list[ShardRow], now: list[ShardRow]) -> list[ShardRow]:
    """Those rows of `now` whose records were tried in another version."""
    before = {row.index: version_of(row) for row in tried}
    return [row for row in now if row.index in before and before[row.index] != version_of(row)]


class Pull:
    """One pull of one run over a dataset of so many `records` into one open destination."""

    def __init__(self, fleet: Fleet, destination: Destination, wish: Wish, records: int) -> None:
        self.tallies: Tallies = {host.name: HostTally() for host in fleet.hosts}
        self._fleet = fleet
        self._destination = destination
        self._wish = wish
        self._records = records
        self._space = Space(destination)
        self._rate = RateLimit(wish.limits.bytes_per_second)
        self._stop = threading.Event()
        self._folder = Path()

    def run(self) -> list[Outcome[HostTally]]:
        """Pull from every host at once; what goes wrong on one is its outcome. Ctrl-C ends all streams."""
        with tempfile.TemporaryDirectory(prefix="roost-ssh-") as folder, Delivery(self._destination) as delivery:
            self._folder = Path(folder)
            with self._stopped_at_the_end():
                outcomes = self._fleet.each(lambda backend: self._host(backend, delivery))
        if delivery.error is not None:
            raise cannot_write(self._destination, delivery.error)
        return outcomes

    @contextmanager
    def _stopped_at_the_end(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._stop.set()

    def _host(self, backend: Backend, delivery: Delivery) -> HostTally:
        tally = self.tallies[backend.host.name]
        puller = HostPull(backend.host.name, self._destination, delivery, self._wish.limits, self._rate, self._stop)
        tally.tally, tally.report = puller.report.tally, puller.report
        with Freeing(backend, self._wish.run, tally if self._wish.free else None) as freeing:
            self._rounds(backend, puller, tally, freeing)
        if puller.report.error is not None:
            raise puller.report.error
        return tally

    def _rounds(self, backend: Backend, puller: HostPull, tally: HostTally, freeing: Freeing) -> None:
        """One round, or with `follow` one after the other until the host's run is complete."""
        cursor = 0
        while not self._stop.is_set():
            found = self._listed(backend, cursor)
            assert found.result is not None
            cursor, tally.status = found.result.cursor, found.result.status
            missing = self._missing(found.rows, backend.host.name, tally, freeing)
            self._bring(backend, puller, missing, tally, freeing)
            if puller.report.error is not None and not self._wish.follow:
                return
            if not self._wish.follow or (tally.status not in AT_WORK and not found.rows):
                return
            cursor = 0 if puller.report.error is not None else cursor
            puller.report.error = None
            self._stop.wait(FOLLOW_SECONDS)

    def _bring(
        self, backend: Backend, puller: HostPull, rows: list[ShardRow], tally: HostTally, freeing: Freeing
    ) -> None:
        """Pull these rows; what failed because its host has changed it meanwhile is pulled as it is now."""
        while rows and not self._stop.is_set():
            puller.run(self._source(backend, rows), rows, freeing.delivered)
            failed = [row for row in rows if row.index in puller.report.failed]
            tally.given_up |= {version_of(row) for row in failed}
            rows = []
            if failed and puller.report.error is None:
                rows = changed(failed, self._listed(backend, 0).rows)
            for row in rows:
                del puller.report.failed[row.index]

    def _source(self, backend: Backend, rows: list[ShardRow]) -> Source:
        codec = self._wish.limits.compress != "never" or any(row.stored == "compressed" for row in rows)
        return source_of(backend.host, self._wish.run, self._folder, codec=codec)

    def _listed(self, backend: Backend, cursor: int) -> Offer:
        """The host's offer; while following, a host that cannot be reached now is asked again."""
        while True:
            try:
                return offer(backend, self._wish.run, cursor, self._records)
            except ConnectionError:
                if not self._wish.follow or self._stop.wait(FOLLOW_SECONDS):
                    raise

    def _missing(self, rows: list[ShardRow], host: str, tally: HostTally, freeing: Freeing) -> list[ShardRow]:
        missing = []
        for row in rows:
            if version_of(row) in tally.given_up:
                continue
            tally.offered += 1
            if self._destination.has(row, host) and not (self._wish.check and self._damaged(row.index)):
                tally.present += 1
                freeing.present(row, self._destination)
            else:
                missing.append(row)
                tally.wanted_bytes += row.size_bytes
        self._space.reserve(sum(row.size_bytes for row in missing))
        return missing

    def _damaged(self, index: int) -> bool:
        known = self._destination.ledger.find(index)
        if known is None or self._destination.is_intact(known):
            return False
        self._destination.ledger.forget([index])
        return True


def missing_of(fleet: Fleet, destination: Destination | None, run: str, records: int) -> list[Outcome[HostTally]]:
    """`--dry-run`: what each host offers and the destination lacks; nothing is transferred."""

    def look(backend: Backend) -> HostTally:
        tally = HostTally()
        found = offer(backend, run, 0, records)
        for row in found.rows:
            tally.offered += 1
            if destination is not None and destination.has(row, backend.host.name):
                tally.present += 1
            else:
                tally.wanted_bytes += row.size_bytes
        return tally

    return fleet.each(look)
