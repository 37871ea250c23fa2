"""Slurm's commands, on its login host: submit, list and cancel a run's array or a verb's job, and no other jobs."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
from pathlib import Path

from remote.engines.slurm.script import script, task_script
from remote.shared.errors import HostError, UsageError
from remote.shared.files import write_whole
from remote.shared.messages.jobs import JobRow, SlurmArray, SlurmTask
from remote.shared.paths import JobPaths, RunPaths

SECONDS = 60.0
LOOK = ("--immediate=5", "--nodes=1", "--ntasks=1", "--time=1", "--chdir=/", "--input=none", "--quiet")
WHERE = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude")
"""Options of the array that decide on which nodes it runs and which account pays."""
SEEN_FROM = "roost looks from"
_JOB = re.compile(r"\d+")
_FORMAT = "%i|%T|%N|%r|%S|%M"
_LEAVE = ("", "N/A", "None")
_FIELD = re.compile(r"(\w+)=(\S+)")
_OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
)  # fmt: skip
"""States of a job that has left the queue, if squeue is set up to list such jobs."""


class Slurm:
    """Slurm as an engine for one run's replicas."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    def text(self, order: SlurmArray, payload: Path) -> str:
        """Return the array's script; raise UsageError if this host has no Slurm."""
        _program("sbatch")
        return script(order, self._paths, payload)

    def submit(self, order: SlurmArray, payload: Path) -> str:
        """Submit the array and return its number; raise UsageError with Slurm's reason if Slurm refuses the array."""
        job = _sent(self.text(order, payload), self._paths.jobs / "array.sh", self._paths.token, order.options)
        write_whole(self._submitted / job, b"")
        return job

    def rows(self) -> list[JobRow]:
        """Return the jobs that were submitted for this run and are in Slurm's queue."""
        folder = self._submitted
        entries = folder.iterdir() if folder.is_dir() else ()
        numbers = sorted(entry.name for entry in entries if _JOB.fullmatch(entry.name))
        if not numbers:
            return []
        return _queued(numbers)

    def earlier(self) -> list[str]:
        """Return the names of this run's jobs in the queue."""
        return [row.job for row in self.rows()]

    def cancel(self, *, dry_run: bool) -> list[str]:
        """End the run's jobs. Slurm sends TERM, at which replicas drain, and KILL after its `KillWait`."""
        jobs = self.earlier()
        if jobs and not dry_run:
            numbers = sorted({job.partition("_")[0] for job in jobs})
            marks = [self._paths.jobs / f"{number}.cancelled" for number in numbers]
            for mark in marks:  # without the mark a task would take the TERM for a preemption, and requeue itself
                write_whole(mark, b"")
            said = _run("scancel", *numbers)
            if said.returncode:
                for mark in marks:
                    mark.unlink()
                raise HostError(f"scancel refused: {said.stderr.strip()}.")
        return jobs

    @property
    def _submitted(self) -> Path:
        """The folder with an empty file for each submitted array, named by the array's number."""
        return self._paths.jobs / "submitted"


class SlurmJob:
    """Slurm as an engine for one job that runs one verb."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths = paths

    def text(self, order: SlurmTask, payload: Path) -> str:
        """The job's script; raises UsageError if this host has no Slurm."""
        _program("sbatch")
        return task_script(order, self._paths, payload)

    def submit(self, order: SlurmTask, payload: Path) -> str:
        """Submit the job and return its number; raises UsageError with Slurm's reason if it is refused."""
        return _sent(self.text(order, payload), self._paths.script, self._paths.root / "token", order.options)

    def row(self, number: str) -> JobRow | None:
        """The job as it waits or runs; None once it has left the queue."""
        rows = [row for row in _queued([number]) if row.state not in _OVER]
        return rows[0].model_copy(update={"job": self._paths.root.name}) if rows else None

    def cause(self, number: str) -> str:
        """Slurm's word for the end of a job, such as OUT_OF_MEMORY; "" if it does not remember the job."""
        said = _run("scontrol", "--oneliner", "show", "job", number)
        told = dict(_FIELD.findall(said.stdout)) if said.returncode == 0 else {}
        state, reason = told.get("JobState", ""), told.get("Reason", "None")
        exited = told.get("ExitCode", "0:0")
        more = [reason] * (reason not in _LEAVE) + [f"exit code {exited}"] * (exited != "0:0")
        return f"{state} ({', '.join(more)})" if state and more else state

    def cancel(self, number: str) -> None:
        """End the job."""
        said = _run("scancel", number)
        if said.returncode:
            raise HostError(f"scancel refused: {said.stderr.strip()}.")


def _sent(text: str, batch: Path, token: Path, options: dict[str, str]) -> str:
    """Submit a script and return the job's number; raise UsageError with Slurm's reason if Slurm refuses it."""
    write_whole(batch, text.encode())
    said = _run("sbatch", "--test-only", str(batch))
    if said.returncode:
        raise _refused(said.stderr)
    _refuse_unshared(token, options)
    made = _run("sbatch", "--parsable", str(batch))
    job = made.stdout.strip().partition(";")[0]
    if made.returncode or not _JOB.fullmatch(job):
        raise _refused(made.stderr or made.stdout)
    return job


def _refuse_unshared(file: Path, options: dict[str, str]) -> None:
    """Raise UsageError if a node that is free now does not see this file's folder.

    If no node is free, the jobs check this when they start.
    """
    token, folder = secrets.token_hex(16), file.parent
    write_whole(file, token.encode())
    where = [f"--{name}={value}" for name, value in options.items() if name in WHERE and value]
    look = ["sh", "-c", f'echo "{SEEN_FROM} $SLURMD_NODENAME"; exec cat -- "$1"', "sh", str(file)]
    said = _run("srun", *LOOK, f"--job-name=roost-look-{folder.name}", *where, *look)
    seen = [line.removeprefix(SEEN_FROM).strip() for line in said.stdout.splitlines() if line.startswith(SEEN_FROM)]
    if seen and token not in said.stdout:
        raise UsageError(
            f"The node {seen[0]} does not see {folder} as this host does, so nothing was submitted.",
            remedy="The cluster's `workdir` must be on a file system that the login host and the nodes share.",
        )


def _queued(numbers: list[str]) -> list[JobRow]:
    """Return those of these jobs that are in Slurm's queue."""
    said = _run("squeue", "--noheader", f"--format={_FORMAT}", f"--jobs={','.join(numbers)}")
    if said.returncode and "Invalid job id" not in said.stderr:
        remedy = "Is Slurm's controller up? `sinfo` shows it."
        raise HostError(f"squeue failed: {said.stderr.strip()}.", remedy=remedy)
    return [_row(line) for line in said.stdout.splitlines() if line.count("|") == _FORMAT.count("|")]


def _row(line: str) -> JobRow:
    job, state, node, reason, starts, seconds = line.strip().split("|")
    starts = "" if starts in _LEAVE or state == "RUNNING" else starts
    return JobRow(
        job=job, state=state, node=node, reason="" if reason in _LEAVE else reason, starts_at=starts, seconds=seconds
    )


def _refused(said: str) -> UsageError:
    """Return the error with Slurm's own reason."""
    lines = [line.partition("error: ")[2] or line for line in said.strip().splitlines()]
    reason = next((line for line in reversed(lines) if line.strip()), "it said nothing").strip().rstrip(".")
    return UsageError(
        f"Slurm refused the job: {reason}.",
        remedy="Change the cluster's settings in the inventory; `sinfo` on the login host shows what there is.",
    )


def _program(name: str) -> None:
    if shutil.which(name) is None:
        raise UsageError(
            f"There is no {name} on this host: this is not a Slurm login host, or Slurm is not on the PATH.",
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
