"""The verbs `submit`, `jobs` and `cancel`. Run on the login host, by laptop or hand; change nothing of others' jobs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from remote.context import Context
from remote.engines.slurm.script import jobs_folder, script
from remote.shared.errors import HostError, UsageError
from remote.shared.files import make_directory, write_whole
from remote.shared.messages.replica import ReplicaSpec
from remote.shared.messages.slurm import (
    CancelRequest,
    CancelResult,
    JobRow,
    JobsRequest,
    JobsResult,
    SubmitRequest,
    SubmitResult,
)
from remote.shared.paths import RunPaths
from remote.work.gathered import read_spec
from remote.work.known import known

SECONDS = 60.0
OVER = "over"
_JOB = re.compile(r"\d+")
_FORMAT = "%i|%T|%N|%r|%S|%M"
_LEAVE = ("", "N/A", "None")


def submit(request: SubmitRequest, context: Context) -> SubmitResult:
    """The verb `submit`: share the run out and submit its array, unless jobs of it are in the queue already."""
    paths = context.workdir.run(request.identity.name)
    if not request.dry_run:
        paths = known(context.workdir, request.identity)
    payload = paths.root / "payload" / context.payload.name
    text = script(request.array, paths, payload)
    _program("sbatch")
    earlier = [row.job for row in _rows(paths)]
    if request.dry_run or earlier:
        return SubmitResult(script=text, earlier=earlier)
    spec = _as_begun(paths, request.spec)
    if (paths.queue / OVER).exists():
        return SubmitResult(script=text, over=True)
    folder = make_directory(jobs_folder(paths))
    _keep_payload(context.payload, payload)
    write_whole(paths.replicas, spec.model_dump_json(indent=1).encode())
    write_whole(folder / "array.sh", text.encode())
    said = _run("sbatch", "--test-only", str(folder / "array.sh"))
    if said.returncode:
        raise _refused(said.stderr)
    made = _run("sbatch", "--parsable", str(folder / "array.sh"))
    job = made.stdout.strip().partition(";")[0]
    if made.returncode or not _JOB.fullmatch(job):
        raise _refused(made.stderr or made.stdout)
    write_whole(folder / "jobs" / job, b"")
    return SubmitResult(script=text, job=job)


def jobs(request: JobsRequest, context: Context) -> JobsResult:
    """The verb `jobs`: what Slurm says of the run's jobs."""
    return JobsResult(jobs=_rows(known(context.workdir, request.identity)))


def cancel(request: CancelRequest, context: Context) -> CancelResult:
    """The verb `cancel`: end the run's own jobs; replicas drain on the TERM that comes first."""
    rows = _rows(known(context.workdir, request.identity))
    numbers = sorted({row.job.partition("_")[0] for row in rows})
    if numbers and not request.dry_run:
        _run("scancel", "--batch", "--signal=TERM", *numbers)
        said = _run("scancel", *numbers)
        if said.returncode:
            raise HostError(f"scancel refused: {said.stderr.strip()}.")
    return CancelResult(jobs=[row.job for row in rows])


def _as_begun(paths: RunPaths, spec: ReplicaSpec) -> ReplicaSpec:
    """The spec with the chunks that the run was begun with: another cut would give the same numbers to other records.

    Raises UsageError if the assignment is another one by now.
    """
    if not paths.replicas.exists():
        return spec
    before = read_spec(paths)
    if before.epoch != spec.epoch:
        raise UsageError(
            f"The run {paths.root.name!r} was shared out at epoch {before.epoch}, and this plan is of epoch "
            f"{spec.epoch}: settings of its hosts were changed since.",
            remedy="Set them back, or plan what is left as a run of its own.",
        )
    return spec.model_copy(update={"chunk_tokens": before.chunk_tokens})


def _rows(paths: RunPaths) -> list[JobRow]:
    """Jobs that this run's own file names, as far as they are in Slurm's queue."""
    folder = jobs_folder(paths) / "jobs"
    numbers = sorted(entry.name for entry in folder.iterdir() if _JOB.fullmatch(entry.name)) if folder.is_dir() else []
    if not numbers:
        return []
    said = _run("squeue", "--noheader", f"--format={_FORMAT}", f"--jobs={','.join(numbers)}")
    if said.returncode and "Invalid job id" not in said.stderr:
        raise HostError(f"squeue failed: {said.stderr.strip()}.", remedy="Is Slurm's controller up? `sinfo` shows it.")
    return [_row(line) for line in said.stdout.splitlines() if line.count("|") == _FORMAT.count("|")]


def _row(line: str) -> JobRow:
    job, state, node, reason, starts, seconds = line.strip().split("|")
    starts = "" if starts in _LEAVE or state == "RUNNING" else starts
    return JobRow(
        job=job, state=state, node=node, reason="" if reason in _LEAVE else reason, starts_at=starts, seconds=seconds
    )


def _refused(said: str) -> UsageError:
    """Slurm's own reason, in a sentence."""
    lines = [line.partition("error: ")[2] or line for line in said.strip().splitlines()]
    reason = next((line for line in reversed(lines) if line.strip()), "it said nothing").strip().rstrip(".")
    return UsageError(
        f"Slurm does not take the job: {reason}.",
        remedy="Change the cluster's settings in the inventory; `sinfo` on the login host shows what there is.",
    )


def _keep_payload(source: Path, target: Path) -> None:
    """A copy that no deploy removes while jobs wait for days."""
    if target.exists():
        return
    aside = make_directory(target.parent) / f".aside-{target.name}"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(source / "remote", aside / "remote", ignore=shutil.ignore_patterns("__pycache__"))
    aside.rename(target)


def _program(name: str) -> None:
    if shutil.which(name) is None:
        raise UsageError(
            f"There is no {name} on this host: it is no login host of a Slurm cluster, or Slurm is not on its PATH.",
            remedy="Name the login host with the cluster's `login`, or set PATH in its `env`.",
        )


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    _program(argv[0])
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"{argv[0]} did not answer within {SECONDS:.0f} s.", remedy="Is Slurm's controller up? `sinfo` shows it."
        ) from error
