"""The verbs `standing` and `rate`: the status of this host's runs, and its speed. Runs on the host; read-only."""

from __future__ import annotations

from statistics import median

from remote.context import Context
from remote.history.store import worked_seconds
from remote.servers.probing.gpu import gpus
from remote.shared.errors import RoostError
from remote.shared.messages.extract import (
    ExtractorState,
    GpuUse,
    Rate,
    RateRequest,
    RunStatus,
    Standing,
    StandingRequest,
)
from remote.shared.paths import RunPaths
from remote.work.known import identity_of, names
from remote.work.ledger import Ledger
from remote.work.lock import is_locked
from remote.work.verbs import newest_run, status_of, touched

RATE_MINUTES = 5
"""Fewer full minutes of work are no measure of a host's speed."""


def standing(request: StandingRequest, context: Context) -> Standing:
    """The verb `standing`: return the GPUs, and the named run, or all working runs, or else the newest run."""
    wanted = [name for name in names(context.workdir) if name == request.run or not request.run]
    runs = [context.workdir.run(name) for name in wanted]
    if not request.run:
        newest = newest_run(context)
        at_rest = [] if newest is None else [context.workdir.run(newest)]
        runs = [paths for paths in runs if is_locked(paths)] or at_rest
    uses = [GpuUse(index=gpu.index, used_bytes=gpu.used_bytes, total_bytes=gpu.total_bytes) for gpu in gpus()]
    worked = {paths.root.name: seconds for paths in runs if (seconds := worked_seconds(paths.history)) is not None}
    others = [] if runs or not request.run else names(context.workdir)
    told = [(status_of if request.run else _whatever)(paths, context) for paths in runs]
    return Standing(runs=told, others=others, gpus=uses, worked_seconds=worked)


def _whatever(paths: RunPaths, context: Context) -> RunStatus:
    """As `status_of`, but a run that cannot be read is returned as failed, so that the other runs are returned too."""
    try:
        return status_of(paths, context)
    except RoostError as error:
        state = ExtractorState(run=paths.root.name, epoch=0, status="failed", cause=str(error))
        return RunStatus(run=paths.root.name, alive=is_locked(paths), word="failed", state=state)


def rate(request: RateRequest, context: Context) -> Rate:
    """The verb `rate`: return the median minute's tokens of the newest run with `RATE_MINUTES` of work."""
    runs = sorted((context.workdir.run(name) for name in names(context.workdir)), key=touched, reverse=True)
    for paths in runs:
        if not paths.ledger.exists() or task_of(paths) != request.task:
            continue
        with Ledger(paths.ledger, to_read=True) as ledger:
            minutes = ledger.tokens_by_minute()
        if len(minutes) >= RATE_MINUTES:
            return Rate(tokens_per_second=median(minutes) / 60, run=paths.root.name, minutes=len(minutes))
    return Rate()


def task_of(paths: RunPaths) -> str:
    """Return the task that makes the run's records; "" if the folder does not say which run it is."""
    try:
        return "extract" if identity_of(paths).answers is None else "answer"
    except RoostError:
        return ""
