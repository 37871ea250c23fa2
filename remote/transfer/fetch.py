"""The verb `fetch`: this host pulls from others, directly, what the laptop's `inv pull --to HOST:FOLDER` asked for.

Runs on the host that becomes the destination; writes only that folder. Its own keys and known hosts lead to the
sources. Nothing is freed here: the laptop tells the sources, from what is streamed back.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from remote.context import Context
from remote.shared.errors import RoostError
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.transfer import DeliveredRow, FetchNews, FetchReport, FetchRequest, FetchResult, FetchSource
from remote.shared.transfer.dataset import gaps, place_dataset
from remote.shared.transfer.delivery import Delivery
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.hostpull import HostPull, Limits, Source, cannot_write
from remote.shared.transfer.manifest import opened_for, refuse_other, write_manifest
from remote.shared.transfer.rate import RateLimit
from remote.shared.transfer.space import Space

NEWS_SECONDS = 1.0


def fetch(request: FetchRequest, context: Context) -> FetchResult:
    """Pull every source's rows; a source that fails is reported and costs only itself."""
    root = Path(request.to).expanduser()
    if request.dry_run:
        return _look(root, request, context)
    stop = threading.Event()
    with opened_for(Destination(root, request.store), request.identity, request.records) as destination:
        if request.free:
            destination.refuse_freeing()
        place_dataset(Path(request.dataset).expanduser(), destination)
        with Delivery(destination) as delivery, ThreadPoolExecutor(max(1, len(request.sources))) as pool:
            space = Space(destination)
            rate = RateLimit(request.bytes_per_second)
            fetchers = [_Fetcher(one, request, destination, delivery, rate, stop) for one in request.sources]
            try:
                running = [pool.submit(fetcher.run, space) for fetcher in fetchers]
                while not all(job.done() for job in running):
                    stop.wait(NEWS_SECONDS)
                    _tell(context, fetchers)
            finally:
                stop.set()
            for job in running:
                job.result()
        if delivery.error is not None:
            raise cannot_write(destination, delivery.error)
        manifest = write_manifest(destination, request.identity, request.records)
        _tell(context, fetchers)
        return FetchResult(manifest=manifest, missing=gaps(destination.ledger.indices(), request.records))


def _look(root: Path, request: FetchRequest, context: Context) -> FetchResult:
    """What is there of what the sources offer; a place that nothing was pulled to yet stays as it is."""
    destination = Destination(root, request.store)
    if not refuse_other(destination, request.identity):
        for source in request.sources:
            _tell_present(context, source, source.rows)
        return FetchResult(manifest=None, missing=gaps([], request.records))
    with destination:
        for source in request.sources:
            _tell_present(context, source, [row for row in source.rows if not destination.has(row, source.name)])
        return FetchResult(manifest=None, missing=gaps(destination.ledger.indices(), request.records))


def _tell_present(context: Context, source: FetchSource, missing: list[ShardRow]) -> None:
    report = FetchReport(present=len(source.rows) - len(missing), wanted_bytes=sum(row.size_bytes for row in missing))
    context.report.item(FetchNews(name=source.name, report=report))


def _tell(context: Context, fetchers: list[_Fetcher]) -> None:
    for fetcher in fetchers:
        context.report.item(fetcher.news())


class _Fetcher:
    """One source, in a thread of its own."""

    def __init__(
        self,
        source: FetchSource,
        request: FetchRequest,
        destination: Destination,
        delivery: Delivery,
        rate: RateLimit,
        stop: threading.Event,
    ) -> None:
        limits = Limits(request.streams, request.bytes_per_second, request.compress)
        self._source = source
        self._check = request.check
        self._destination = destination
        self._pull = HostPull(source.name, destination, delivery, limits, rate, stop)
        self._wanted_bytes = 0
        self._present_count = 0
        self._lock = threading.Lock()
        self._delivered: list[int] = []
        self._present: list[int] = []

    def run(self, space: Space) -> None:
        missing = [row for row in self._source.rows if not self._is_here(row)]
        self._wanted_bytes = sum(row.size_bytes for row in missing)
        source = Source(self._source.name, self._source.command, self._source.root, self._source.payload)
        try:
            space.reserve(self._wanted_bytes)
            if missing:
                self._pull.run(source, missing, self._note)
        except RoostError as error:
            self._pull.report.error = error

    def news(self) -> FetchNews:
        """What there is to tell since the last time."""
        report = self._pull.report
        with self._lock:
            delivered, self._delivered = self._delivered, []
            present, self._present = self._present, []
        told = FetchReport(
            wanted_bytes=self._wanted_bytes,
            present=self._present_count,
            wire_bytes=report.tally.wire_bytes,
            plain_bytes=report.tally.plain_bytes,
            kept_bytes=report.tally.kept_bytes,
            delivered=report.delivered,
            delivered_bytes=report.delivered_bytes,
            failed=dict(report.failed),
            streams=report.streams,
            seconds=report.seconds,
            error=report.error.message if report.error else "",
            remedy=report.error.remedy if report.error else "",
        )
        return FetchNews(name=self._source.name, present=present, delivered=delivered, report=told)

    def _is_here(self, row: ShardRow) -> bool:
        if not self._destination.has(row, self._source.name):
            return False
        known = self._destination.ledger.find(row.index)
        assert known is not None
        intact = not self._check or self._destination.is_intact(known)
        if not intact:
            self._destination.ledger.forget([row.index])
            return False
        self._present_count += 1
        if self._check and known.durable and known.xxh3 == row.xxh3:
            with self._lock:
                self._present.append(row.index)
        return True

    def _note(self, rows: list[DeliveredRow]) -> None:
        with self._lock:
            self._delivered += [row.index for row in rows if row.durable]
