"""The verb `fetch`: this host pulls directly from other hosts, for the laptop's `inv pull --to HOST:FOLDER`.

Runs the engine on the host that becomes the destination, and writes only that folder. This host lists, pulls from and
frees on the sources with its own keys and known hosts. The verb ends with the laptop's connection.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, wait
from contextlib import nullcontext
from pathlib import Path

from remote.context import Context
from remote.shared.errors import RoostError
from remote.shared.messages.transfer import FetchNews, FetchRequest, FetchResult, HostTally
from remote.shared.supervised.pools import Pool
from remote.shared.transfer.bounds import Bounds
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.engine import Engine, look
from remote.shared.transfer.manifest import opened_for, refuse_other, refuse_split, write_manifest
from remote.transfer.login import login_origin

NEWS_SECONDS = 1.0
LOGIN_UMASK = "ROOST_UMASK"
"""The login's own umask (octal). The bootstrap keeps it and sets a private umask; delivered files are not private."""


def fetch(request: FetchRequest, context: Context) -> FetchResult:
    """Pull from every source; a source that fails is reported, and the others go on."""
    bounds = Bounds(request.identity, request.records, request.lengths)
    place = Destination(Path(request.to).expanduser(), request.store, request.identity.folder)
    if request.dry_run:
        return _look(place, request, bounds, context)
    os.umask(int(os.environ.get(LOGIN_UMASK, "077"), 8))
    wish = request.wish
    refuse_other(place, request.identity)
    refuse_split(place, request.identity.name, request.elsewhere)
    with opened_for(place, request.identity, request.records) as destination:
        if wish.free:
            destination.refuse_freeing()
        if request.dataset:
            destination.place_dataset(Path(request.dataset).expanduser())
        with Engine(destination, wish, bounds) as engine, Pool(max(1, len(request.sources)), "host") as pool:
            engine.enlist([source.name for source in request.sources])
            origins = [login_origin(source, bounds) for source in request.sources]
            jobs = {origin.source.name: pool.submit(engine.bring, origin) for origin in origins}
            while wait(jobs.values(), NEWS_SECONDS).not_done:
                _tell(context, engine, jobs)
            _tell(context, engine, jobs)
        manifest = write_manifest(destination, request.identity, request.records)
        return FetchResult(manifest=manifest, missing=destination.missing(request.records))


def _tell(context: Context, engine: Engine, jobs: dict[str, Future[HostTally]]) -> None:
    for name, job in jobs.items():
        tally = engine.tallies[name]
        error = job.exception() if job.done() else None
        context.report.item(_news(name, tally.model_copy(update={"failed": dict(tally.failed)}), error))


def _news(name: str, tally: HostTally, error: BaseException | None = None) -> FetchNews:
    if error is None:
        return FetchNews(name=name, tally=tally)
    if not isinstance(error, RoostError):
        raise error
    return FetchNews(name=name, tally=tally, kind=error.kind, error=error.message, remedy=error.remedy)


def _look(place: Destination, request: FetchRequest, bounds: Bounds, context: Context) -> FetchResult:
    """Report what the sources offer and the destination lacks. A folder that nothing was pulled to is not opened."""
    with place if refuse_other(place, request.identity) else nullcontext() as destination:
        for source in request.sources:
            try:
                context.report.item(_news(source.name, look(login_origin(source, bounds), destination)))
            except RoostError as error:
                context.report.item(_news(source.name, HostTally(), error))
        missing = [(0, request.records)] if destination is None else destination.missing(request.records)
        return FetchResult(manifest=None, missing=missing)
