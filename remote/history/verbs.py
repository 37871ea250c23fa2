"""The verbs `history` and `glance`: a host's recorded history, and its present state. Run on the host; read-only."""

from __future__ import annotations

import time

from remote.context import Context
from remote.history.look import Looker, runs_at_work
from remote.history.store import HistoryError, to_read
from remote.history.thinning import at_most
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.history import (
    Event,
    Glance,
    GlanceEnd,
    GlanceRequest,
    HistoryItem,
    HistoryRequest,
    HistoryResult,
    Point,
    Reading,
)
from remote.shared.paths import Workdir
from remote.work.known import named

BATCH = 200
RECENT_SECONDS = 1800.0
RECENT_POINTS = 60


def history(request: HistoryRequest, context: Context) -> HistoryResult:
    """The verb `history`: stream the points of a run or a server as `HistoryItem`s; return its events."""
    if bool(request.run) == bool(request.server):
        raise UsageError("Name either a run or a server.")
    path = (
        named(context.workdir, request.run).history if request.run else context.workdir.server(request.server).history
    )
    try:
        with to_read(path) as store:
            points = at_most(list(store.points(request.since, request.series)), request.most)
            events = store.events()
    except HistoryError as error:
        return HistoryResult(problem=str(error))
    for first in range(0, len(points), BATCH):
        context.report.item(HistoryItem(points=points[first : first + BATCH]))
    return HistoryResult(events=events, points=len(points))


def glance(request: GlanceRequest, context: Context) -> GlanceEnd:
    """The verb `glance`: stream readings of the host until the caller disconnects."""
    looker = Looker(context.workdir)
    first = True
    while True:
        reading = looker.look(_shown(request.run, context.workdir))
        context.report.item(_glance(reading, context.workdir, request.events, first=first))
        if request.once:
            return GlanceEnd()
        first = False
        time.sleep(request.every_seconds)


def _shown(run: str, workdir: Workdir) -> list[str]:
    """Return the named run, or all working runs, or else the run whose extractor wrote its state last."""
    if run:
        return [run] if run in workdir.run_names() else []
    states = {name: workdir.run(name).state for name in workdir.run_names()}
    touched = {name: state.stat().st_mtime for name, state in states.items() if state.exists()}
    newest = max(touched, key=lambda name: touched[name], default=None)
    return runs_at_work(workdir) or ([] if newest is None else [newest])


def _glance(reading: Reading, workdir: Workdir, events: int, *, first: bool) -> Glance:
    """Return the reading together with the histories of its runs, or, without runs, of its servers."""
    recent: list[Point] = []
    happened: list[Event] = []
    worked: dict[str, float] = {}
    problem = ""
    paths = [(run.run, workdir.run(run.run).history) for run in reading.runs]
    for name, path in paths or [(one.name, workdir.server(one.name).history) for one in reading.servers]:
        try:
            with to_read(path) as store:
                last = store.last()
                happened += store.events(events)
                worked[name] = last.values.get("worked", 0.0) if last else 0.0
                if first:
                    since = reading.at - RECENT_SECONDS
                    recent += at_most(list(store.points(since, ("tokens_per_second",))), RECENT_POINTS)
        except HostError as error:
            problem = problem or str(error)
    known = {(event.at, event.subject, event.text): event for event in happened}  # runs share their servers' events
    newest = sorted(known.values(), key=lambda event: event.at)[-events:]
    return Glance(reading=reading, recent=recent, events=newest, worked_seconds=worked, problem=problem)
