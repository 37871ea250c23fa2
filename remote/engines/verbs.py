"""The verbs `submit`, `jobs` and `cancel`: a run's replicas on a cluster. Run on the cluster's login host.

This module has what all engines share. The run is cut into chunks once; the run's folder keeps a copy of the code for
as long as jobs may wait, and the name of the engine to which the run was submitted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from remote.context import Context
from remote.engines import single
from remote.engines.payload import keep_payload
from remote.engines.ray.engine import Ray
from remote.engines.slurm.engine import Slurm
from remote.shared.errors import UsageError
from remote.shared.files import make_directory, read_own, write_whole
from remote.shared.messages.jobs import (
    CancelRequest,
    CancelResult,
    JobRow,
    JobsRequest,
    JobsResult,
    SubmitRequest,
    SubmitResult,
)
from remote.shared.messages.replica import ReplicaSpec
from remote.shared.paths import RunPaths
from remote.work.gathered import in_round, is_shared_out, open_records, read_spec, take_in
from remote.work.known import known
from remote.work.secrets import put_aside


class Engine(Protocol):
    """What a scheduler does for one run. Each engine has its own type of order."""

    def text(self, order: Any, payload: Path) -> str:
        """Return what would be submitted, for people to read."""

    def submit(self, order: Any, payload: Path) -> str:
        """Submit the replicas and return the job's name."""

    def rows(self) -> list[JobRow]:
        """Return the run's jobs that wait or run, and the replicas that ended for good, with their causes."""

    def earlier(self) -> list[str]:
        """Return the run's jobs that are already in the queue; if there are any, nothing is submitted."""

    def cancel(self, *, dry_run: bool) -> list[str]:
        """End the run's jobs and return their names, or only return them."""


ENGINES: dict[str, type[Slurm] | type[Ray]] = {"slurm": Slurm, "ray": Ray}


def submit(request: SubmitRequest, context: Context) -> SubmitResult:
    """The verb `submit`: submit the run's replicas, unless jobs of the run are already in the queue."""
    paths = context.workdir.run(request.identity.name)
    if not request.dry_run:
        paths = known(context.workdir, request.identity)
    payload = paths.root / "payload" / context.payload.name
    begun = _begun(paths)
    earlier = begun.earlier() if begun is not None else []
    if request.dry_run or earlier:
        now = in_round(paths, read_spec(paths)) if is_shared_out(paths) else paths
        return SubmitResult(script=_engine(request.order.engine, now).text(request.order, payload), earlier=earlier)
    spec = _as_begun(paths, request.spec)
    engine = _engine(request.order.engine, in_round(paths, spec))
    text = engine.text(request.order, payload)
    if in_round(paths, spec).over.exists():
        take_in(paths)
        left = open_records(paths)
        if not left:
            return SubmitResult(script=text, over=True)
        spec = request.spec.model_copy(update={"round": spec.round + 1, "records": left})
        engine = _engine(request.order.engine, in_round(paths, spec))
        text = engine.text(request.order, payload)
    make_directory(paths.jobs)
    keep_payload(context.payload, payload)
    bare = put_aside(in_round(paths, spec), spec)
    write_whole(paths.replicas, bare.model_dump_json(indent=1).encode())
    write_whole(_engine_file(paths), request.order.engine.encode())
    return SubmitResult(script=text, job=engine.submit(request.order, payload))


def jobs(request: JobsRequest, context: Context) -> JobsResult:
    """The verb `jobs`: return the run's jobs as the scheduler reports them, or the jobs that run one verb each."""
    if request.identity is None:
        return JobsResult(jobs=single.rows(context, request.name))
    begun = _begun(known(context.workdir, request.identity))
    return JobsResult(jobs=[] if begun is None else begun.rows())


def cancel(request: CancelRequest, context: Context) -> CancelResult:
    """The verb `cancel`: end the run's own jobs, after their replicas have drained, or the named job of one verb."""
    if request.identity is None:
        return CancelResult(jobs=single.cancel(context, request.name, dry_run=request.dry_run))
    paths = known(context.workdir, request.identity)
    begun = _begun(paths)
    ended = [] if begun is None else begun.cancel(dry_run=request.dry_run)
    if not request.dry_run and is_shared_out(paths):
        in_round(paths, read_spec(paths)).secrets.unlink(missing_ok=True)
    return CancelResult(jobs=ended)


def _begun(paths: RunPaths) -> Engine | None:
    """Return the engine to which the run was submitted; None if it was never submitted."""
    file = _engine_file(paths)
    return _engine(read_own(file).decode(), paths) if file.exists() else None


def _engine(name: str, paths: RunPaths) -> Engine:
    return ENGINES[name](paths)


def _engine_file(paths: RunPaths) -> Path:
    return paths.jobs / "engine"


def _as_begun(paths: RunPaths, spec: ReplicaSpec) -> ReplicaSpec:
    """Return the spec with the round, and the size of chunks, with which the run's replicas work.

    With another size the same chunk numbers would mean other records. Raises UsageError if the plan has another epoch.
    """
    if not paths.replicas.exists():
        return spec
    before = read_spec(paths)
    if before.epoch != spec.epoch:
        raise UsageError(
            f"The run {paths.root.name!r} was submitted with its plan at epoch {before.epoch}, but the plan is now at "
            f"epoch {spec.epoch}, because settings of its hosts were changed.",
            remedy="Set them back, or plan the open records as another run.",
        )
    kept = {"chunk_tokens": before.chunk_tokens, "round": before.round, "records": before.records}
    return spec.model_copy(update=kept)
