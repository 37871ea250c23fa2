"""`inv pull --to HOST:FOLDER`: one host of the inventory pulls from the others, directly. Runs on the laptop.

The bytes never pass through here: the destination runs the verb `fetch` and logs in to the sources with its own keys
and known hosts. The laptop brings the dataset, says what there is to pull, and lets the sources free what has arrived.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from hosts.errors import HostError, ProtocolError, RoostError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.plan.plan import Plan
from hosts.pull.pull import AT_WORK, FOLLOW_SECONDS, HostTally, Tallies, Wish, changed, version_of
from hosts.pull.push import push
from hosts.pull.sources import Offer, fetch_source, free, offer
from hosts.transport.backend import Backend
from remote.shared.messages.extract import Delivered, ShardRow
from remote.shared.messages.transfer import FetchNews, FetchReport, FetchRequest, FetchResult, Store
from remote.shared.transfer.hostpull import HostReport

Rows = dict[str, list[ShardRow]]
"""By the name of the host that offers them."""


@dataclass(frozen=True)
class Place:
    """A folder on a host of the inventory."""

    host: Host
    folder: str

    def __str__(self) -> str:
        return f"{self.host.name}:{self.folder}"


def place_of(fleet: Fleet, to: str) -> Place | None:
    """The host and the folder, if `to` is `HOST:FOLDER` with a host of the inventory."""
    name, colon, folder = to.partition(":")
    host = fleet.inventory.hosts.get(name)
    return Place(host, folder) if colon and host is not None and folder else None


@dataclass
class _Round:
    """One call of the verb `fetch`: what was asked of it, and what it has told."""

    rows: Rows
    reports: dict[str, FetchReport] = field(default_factory=dict)
    durable: dict[str, set[int]] = field(default_factory=dict)
    """Records that are safe there, and may be freed."""

    def take(self, news: FetchNews) -> None:
        asked = {row.index for row in self.rows.get(news.name, [])}
        done = {*news.present, *news.delivered}
        if news.name not in self.rows or not done <= asked:
            raise ProtocolError(f"The host tells of records of {news.name!r} that it was not asked to pull."[:500])
        self.durable.setdefault(news.name, set()).update(done)
        if news.report is not None:
            self.reports[news.name] = news.report

    def failed(self, name: str) -> list[ShardRow]:
        """Rows of a host that was reached, and that did not come right."""
        told = self.reports.get(name, FetchReport())
        return [] if told.error else [row for row in self.rows[name] if row.index in told.failed]


class DirectPull:
    """One pull of one run from the hosts of `fleet` into `folder` on the destination; `tallies` tell how far it is."""

    def __init__(
        self, fleet: Fleet, destination: Backend, folder: str, wish: Wish, plan: Plan, store: Store = "plain"
    ) -> None:
        self.tallies: Tallies = {host.name: HostTally() for host in fleet.hosts}
        self._fleet = fleet
        self._destination = destination
        self._folder = folder
        self._wish = wish
        self._plan = plan
        self._store = store
        self._records = plan.records
        self._dataset = f"{folder.rstrip('/')}/roost/dataset-{plan.identity.dataset[:16]}"
        self._before = {host.name: FetchReport() for host in fleet.hosts}
        """What the rounds that are over came to."""

    def run(self) -> tuple[list[Outcome[HostTally]], FetchResult]:
        """Pull all that is offered; with `follow` round after round, until the run is complete on every host.

        Raises HostError or ConnectionLostError where the destination itself fails.
        """
        push(self._destination, Path(self._plan.dataset), self._dataset)
        cursors = dict.fromkeys(self.tallies, 0)
        result: FetchResult | None = None
        while True:
            offers = self._offers(cursors)
            rows = {one.host.name: self._new(one.value, one.host.name) for one in offers if one.value is not None}
            if result is None or any(rows.values()):
                result = self._bring(rows)
            if not self._wish.follow or all(self._is_over(one) for one in offers):
                return [self._outcome(one) for one in offers], result
            for name in rows:
                lost = self._before[name].error != ""
                cursors[name] = 0 if lost else cursors[name]
            time.sleep(FOLLOW_SECONDS)

    def look(self) -> tuple[list[Outcome[HostTally]], FetchResult]:
        """`--dry-run`: what the hosts offer and the destination lacks; nothing is transferred."""
        offers = self._offers(dict.fromkeys(self.tallies, 0))
        turn = _Round({one.host.name: one.value.rows for one in offers if one.value is not None})
        request = self._request(turn.rows).model_copy(update={"dry_run": True})
        result = self._fetch(request, turn)
        for name, told in turn.reports.items():
            tally = self.tallies[name]
            tally.offered, tally.present, tally.wanted_bytes = len(turn.rows[name]), told.present, told.wanted_bytes
        return [self._outcome(one) for one in offers], result

    def _offers(self, cursors: dict[str, int]) -> list[Outcome[Offer]]:
        """What the hosts have beyond the cursors, which move on."""
        offers = self._fleet.each(
            lambda backend: offer(backend, self._wish.run, cursors[backend.host.name], self._records)
        )
        for one in offers:
            if one.value is not None and one.value.result is not None:
                cursors[one.host.name] = one.value.result.cursor
                self.tallies[one.host.name].status = one.value.result.status
        return offers

    def _new(self, found: Offer, name: str) -> list[ShardRow]:
        """What was not tried and given up before."""
        return [row for row in found.rows if version_of(row) not in self.tallies[name].given_up]

    def _is_over(self, offered: Outcome[Offer]) -> bool:
        """Whether nothing more can come of a host: its run is complete, or it does not know the run."""
        if offered.error is not None:
            return not isinstance(offered.error, ConnectionError)
        assert offered.value is not None
        return self.tallies[offered.host.name].status not in AT_WORK and not self._new(offered.value, offered.host.name)

    def _bring(self, rows: Rows) -> FetchResult:
        """Fetch these rows; what failed because its host has changed it meanwhile is fetched as it is now."""
        for name, offered in rows.items():
            self.tallies[name].offered += len(offered)
        while True:
            turn = _Round(rows)
            result = self._fetch(self._request(rows), turn)
            if self._wish.free:
                self._free(turn)
            failed = {name: turn.failed(name) for name in rows}
            again = self._changed({name: tried for name, tried in failed.items() if tried})
            for name, told in turn.reports.items():
                self.tallies[name].given_up |= {version_of(row) for row in failed[name]}
                report = told.after(self._before[name])
                for row in again.get(name, []):
                    del report.failed[row.index]
                self._before[name] = report
                self._show(name, report)
            if not again:
                return result
            rows = again

    def _fetch(self, request: FetchRequest, turn: _Round) -> FetchResult:
        def hear(value: dict[str, object]) -> None:
            news = FetchNews.model_validate(value)
            turn.take(news)
            if news.report is not None and not request.dry_run:
                self._show(news.name, news.report.after(self._before[news.name]))

        return self._destination.call("fetch", request, FetchResult, deadline=None, on_item=hear)

    def _request(self, rows: Rows) -> FetchRequest:
        wish = self._wish
        return FetchRequest(
            to=self._folder,
            dataset=self._dataset,
            identity=self._plan.identity,
            records=self._records,
            store=self._store,
            streams=wish.limits.streams,
            bytes_per_second=wish.limits.bytes_per_second,
            compress=wish.limits.compress,
            check=wish.check or wish.free,
            free=wish.free,
            sources=[
                fetch_source(host, self._destination.host, wish.run, rows[host.name], wish.limits.compress)
                for host in self._fleet.hosts
                if host.name in rows
            ],
        )

    def _changed(self, failed: Rows) -> Rows:
        if not failed:
            return {}
        chosen = self._fleet.narrowed([host for host in self._fleet.hosts if host.name in failed])
        now = chosen.each(lambda backend: offer(backend, self._wish.run, 0, self._records).rows)
        found = {one.host.name: changed(failed[one.host.name], one.value) for one in now if one.value is not None}
        return {name: rows for name, rows in found.items() if rows}

    def _free(self, turn: _Round) -> None:
        def tell(backend: Backend) -> None:
            name = backend.host.name
            done = turn.durable.get(name, set())
            records = [Delivered(index=row.index, xxh3=row.xxh3) for row in turn.rows[name] if row.index in done]
            if records:
                freed = free(backend, self._wish.run, records)
                self.tallies[name].freed += freed.records
                self.tallies[name].freed_bytes += freed.freed_bytes

        chosen = self._fleet.narrowed([host for host in self._fleet.hosts if host.name in turn.rows])
        for outcome in chosen.each(tell):
            if outcome.error is not None:
                told = turn.reports.setdefault(outcome.host.name, FetchReport())
                told.error, told.remedy = outcome.error.message, outcome.error.remedy

    def _show(self, name: str, told: FetchReport) -> None:
        tally = self.tallies[name]
        report = tally.report or HostReport(name, tally.tally)
        tally.report = report
        tally.present, tally.wanted_bytes = told.present, told.wanted_bytes
        tally.tally.wire_bytes, tally.tally.plain_bytes = told.wire_bytes, told.plain_bytes
        tally.tally.kept_bytes = told.kept_bytes
        report.delivered, report.delivered_bytes = told.delivered, told.delivered_bytes
        report.failed, report.streams, report.seconds = told.failed, told.streams, told.seconds
        report.error = HostError(told.error, remedy=told.remedy) if told.error else None

    def _outcome(self, offered: Outcome[Offer]) -> Outcome[HostTally]:
        tally = self.tallies[offered.host.name]
        error: RoostError | None = offered.error or (tally.report.error if tally.report else None)
        return Outcome(offered.host, None if error else tally, error)
