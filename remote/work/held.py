"""The verbs `runs` and `plan`: tell a laptop that does not know a run what this host has of it. Read-only."""

from __future__ import annotations

from pathlib import Path

from remote.context import Context
from remote.shared.errors import HostError, RoostError, UsageError
from remote.shared.messages.extract import HeldRun, PlanRequest, PlanResult, RunRequest, RunsRequest, RunsResult
from remote.shared.paths import PLAN_FILE, RunPaths
from remote.work import epochs
from remote.work.known import identity_of, known, names
from remote.work.verbs import status


def runs(request: RunsRequest, context: Context) -> RunsResult:
    """The verb `runs`: return a row for each run. The row of an unreadable folder has the reason instead of numbers."""
    found = [name for name in names(context.workdir) if request.run in ("", name)]
    return RunsResult(runs=[_held(context, name) for name in found])


def plan(request: PlanRequest, context: Context) -> PlanResult:
    """The verb `plan`: return the newest plan of this run; raises UsageError if this host has no plan of the run."""
    paths = known(context.workdir, request.identity)
    path = _plan_file(paths)
    if path is None:
        raise UsageError(f"This host has no plan of the run {request.identity.name!r}.", remedy="Ask another host.")
    try:
        return PlanResult(content=path.read_text())
    except OSError as error:
        raise HostError(f"{path} could not be read: {error.strerror}.") from error


def _held(context: Context, name: str) -> HeldRun:
    paths = context.workdir.run(name)
    try:
        identity_of(paths)
        told = status(RunRequest(run=name), context)
        assignment = epochs.read_description(epochs.newest(paths))
    except RoostError as error:
        return HeldRun(name=name, problem=error.message)
    return HeldRun(
        name=name,
        assignment=assignment,
        counts=told.state.counts,
        status=told.state.status,
        alive=told.alive,
        has_plan=_plan_file(paths) is not None,
        changed_at=max(told.state.updated_at, paths.assignments.stat().st_mtime),
    )


def _plan_file(paths: RunPaths) -> Path | None:
    """Return the plan of the highest epoch that has a plan; an assignment that revokes a share has none."""
    given = sorted((int(entry.name) for entry in paths.assignments.iterdir() if entry.name.isdecimal()), reverse=True)
    files = (paths.assignment(epoch) / PLAN_FILE for epoch in given)
    return next((path for path in files if path.is_file()), None)
