"""Slurm's commands, on its login host: submit a run's array, list its jobs, cancel them; touch no others' jobs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from remote.engines.slurm.script import script
from remote.shared.errors import HostError, UsageError
from remote.shared.files import write_whole
from remote.shared.messages.jobs import JobRow, SlurmArray
from remote.shared.paths import RunPaths

SECONDS = 60.0
_JOB = re.compile(r"\d+")
_FORMAT = "%i|%T|%N|%r|%S|%M"
_LEAVE = ("", "N/A", "None")


class Slurm:
    """Slurm as an engine for one run's replicas."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    def text(self, order: SlurmArray, payload: Path) -> str:
        """The array's script; raises UsageError if this host has no Slurm."""
        _program("sbatch")
        return script(order, self._paths, payload)

    def submit(self, order: SlurmArray, payload: Path) -> str:
        """Submit the array and return its number; raises UsageError with Slurm's reason if it is refused."""
        batch = self._paths.jobs / "array.sh"
        write_whole(batch, self.text(order, payload).encode())
        said = _run("sbatch", "--test-only", str(batch))
        if said.returncode:
            raise _refused(said.stderr)
        made = _run("sbatch", "--parsable", str(batch))
        job = made.stdout.strip().partition(";")[0]
        if made.returncode or not _JOB.fullmatch(job):
            raise _refused(made.stderr or made.stdout)
        write_whole(self._submitted / job, b"")
        return job

    def rows(self) -> list[JobRow]:
        """Jobs that this run's own file names, as far as they are in Slurm's queue."""
        folder = self._submitted
        entries = folder.iterdir() if folder.is_dir() else ()
        numbers = sorted(entry.name for entry in entries if _JOB.fullmatch(entry.name))
        if not numbers:
            return []
        said = _run("squeue", "--noheader", f"--format={_FORMAT}", f"--jobs={','.join(numbers)}")
        if said.returncode and "Invalid job id" not in said.stderr:
            remedy = "Is Slurm's controller up? `sinfo` shows it."
            raise HostError(f"squeue failed: {said.stderr.strip()}.", remedy=remedy)
        return [_row(line) for line in said.stdout.splitlines() if line.count("|") == _FORMAT.count("|")]

    def earlier(self) -> list[str]:
        """Jobs of this run in the queue."""
        return [row.job for row in self.rows()]

    def cancel(self, *, dry_run: bool) -> list[str]:
        """End the run's jobs; replicas drain on the TERM that comes first."""
        jobs = self.earlier()
        if jobs and not dry_run:
            numbers = sorted({job.partition("_")[0] for job in jobs})
            _run("scancel", "--batch", "--signal=TERM", *numbers)
            said = _run("scancel", *numbers)
            if said.returncode:
                raise HostError(f"scancel refused: {said.stderr.strip()}.")
        return jobs

    @property
    def _submitted(self) -> Path:
        """One empty file for each array that was submitted, named by its number."""
        return self._paths.jobs / "submitted"


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
