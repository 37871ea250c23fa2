"""Slurm's commands, on its login host: submit a run's array, list its jobs, cancel them; touch no others' jobs."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
from pathlib import Path

from remote.engines.slurm.script import script
from remote.shared.errors import HostError, UsageError
from remote.shared.files import write_whole
from remote.shared.messages.jobs import JobRow, SlurmArray
from remote.shared.paths import RunPaths

SECONDS = 60.0
LOOK = ("--immediate=5", "--nodes=1", "--ntasks=1", "--time=1", "--chdir=/", "--input=none", "--quiet")
WHERE = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude")
"""Options of the array that decide on which nodes it runs, and who pays."""
SEEN_FROM = "roost looks from"
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
        self._refuse_unshared(order)
        made = _run("sbatch", "--parsable", str(batch))
        job = made.stdout.strip().partition(";")[0]
        if made.returncode or not _JOB.fullmatch(job):
            raise _refused(made.stderr or made.stdout)
        write_whole(self._submitted / job, b"")
        return job

    def _refuse_unshared(self, order: SlurmArray) -> None:
        """Raise UsageError if a node that is free now does not see the run's folder; if none is free, replicas look."""
        token = secrets.token_hex(16)
        write_whole(self._paths.token, token.encode())
        options = [f"--{name}={value}" for name, value in order.options.items() if name in WHERE and value]
        look = ["sh", "-c", f'echo "{SEEN_FROM} $SLURMD_NODENAME"; exec cat -- "$1"', "sh", str(self._paths.token)]
        said = _run("srun", *LOOK, f"--job-name=roost-look-{self._paths.root.name}", *options, *look)
        seen = [line.removeprefix(SEEN_FROM).strip() for line in said.stdout.splitlines() if line.startswith(SEEN_FROM)]
        if seen and token not in said.stdout:
            raise UsageError(
                f"The node {seen[0]} does not see {self._paths.root} as this host does, so nothing was submitted.",
                remedy="The cluster's `workdir` must be on a file system that the login host and the nodes share.",
            )

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
        """End the run's jobs: Slurm sends TERM, on which replicas drain, and KILL after its `KillWait`."""
        jobs = self.earlier()
        if jobs and not dry_run:
            numbers = sorted({job.partition("_")[0] for job in jobs})
            marks = [self._paths.jobs / f"{number}.cancelled" for number in numbers]
            for mark in marks:  # or else a task would take the TERM for a preemption, and requeue itself
                write_whole(mark, b"")
            said = _run("scancel", *numbers)
            if said.returncode:
                for mark in marks:
                    mark.unlink()
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
