"""Runs one verb as a job on a cluster's node: `python -m remote.engines.perform FOLDER ATTEMPT CORES NODE`.

Started by the job's script. It reads the job's task in the folder that the node shares with the login host, and writes
the verb's lines there, where the login host follows them (`remote.engines.single`). It opens no ledger of a run: the
task brings a copy. Knows no scheduler.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

from pydantic import BaseModel

from remote.report import LogReport, Report
from remote.shared.errors import UsageError
from remote.shared.files import FILE_MODE, make_directory, read_own
from remote.shared.messages.envelope import Failure, Item, Progress
from remote.shared.messages.jobs import JobTask
from remote.shared.paths import JobPaths, RunPaths, Workdir
from remote.verbs.run import answer

PROGRESS_SECONDS = 2.0
"""Between two lines of progress: every line goes to a shared file system at once."""
ON_ALL_CORES = ("processes", "threads")
"""The fields of requests that say how many cores a verb may use."""


class JobReport(Report):
    """Writes every line to the job's file of lines, and what is for people to the job's log."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        super().__init__(stream)
        self._log = LogReport(log)
        self._said = 0.0

    def line(self, message: BaseModel) -> None:
        """Write a line; progress that follows too soon is left out."""
        if isinstance(message, Progress):
            if time.monotonic() - self._said < PROGRESS_SECONDS:
                return
            self._said = time.monotonic()
        super().line(message)
        if not isinstance(message, Item):
            os.fsync(self._stream.fileno())  # or else another host sees it only when the file system's client likes
        self._log.line(_counted(message) if isinstance(message, Progress) else message)


def main(folder: str, attempt: str, cores: str, node: str) -> int:
    """Run the task's verb on this node; return its exit code."""
    paths = JobPaths(Path(folder))
    task = JobTask.model_validate_json(read_own(paths.task))
    descriptor = os.open(paths.lines(int(attempt)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    with (
        os.fdopen(descriptor, "w", encoding="utf-8") as stream,
        tempfile.TemporaryDirectory(prefix="roost-job-") as own,
    ):
        report = JobReport(stream, sys.stdout)
        try:
            _refuse_unseen(task, node)
        except UsageError as error:
            report.line(Failure(kind=error.kind, message=error.message, remedy=error.remedy))
            return 2
        if task.run:
            _lay_out(Workdir(Path(own)), RunPaths(Path(task.run)), paths)
        request = {**task.call.request}
        request |= {key: int(cores) for key in ON_ALL_CORES if key in request and not request[key]}
        return answer(task.call.model_copy(update={"workdir": own, "request": request}), report)


def _refuse_unseen(task: JobTask, node: str) -> None:
    """Raise UsageError if a path of the login host is not there on this node."""
    for path in [*task.seen, task.mark]:
        if path and not os.path.lexists(path):
            shown = path if path != task.mark else str(Path(path).parent)
            raise UsageError(
                f"The node {node} does not see {shown} as the login host does.",
                remedy="Use a path on the file system that the login host and the nodes share.",
            )


def _lay_out(workdir: Workdir, run: RunPaths, job: JobPaths) -> None:
    """Make a working directory on this node in which the run has its shards, and a copy of its ledger."""
    own = workdir.run(run.root.name)
    make_directory(own.root)
    shutil.copyfile(job.ledger, own.ledger)
    for here, there in ((own.assignments, run.assignments), (own.shards, run.shards)):
        here.symlink_to(there)


def _counted(line: Progress) -> Progress:
    """Return the progress with its position in its text, for the log."""
    if line.done is None:
        return line
    total = "" if line.total is None else f" of {line.total:,.0f}"
    return line.model_copy(update={"text": f"{line.text}: {line.done:,.0f}{total} {line.unit}".rstrip()})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
