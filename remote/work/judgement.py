"""Decides about a record whose attempt failed: another attempt, quarantine, or the end of the whole run.

Runs on the host inside the dispatcher's event loop. A record is at fault only if other records succeed meanwhile. A
series of failures ends the run, and records that the series quarantined are open again.
"""

from __future__ import annotations

import time

from remote.report import Report
from remote.shared.errors import HostError, RoostError
from remote.shared.paths import RunPaths
from remote.work.assignment import Work
from remote.work.backlog import Backlog, Task
from remote.work.commit import Committer
from remote.work.endpoint import Endpoint
from remote.work.failures import HeldUpError, RefusedError, ServerGoneError, TryError
from remote.work.ledger import Ledger, Row
from remote.work.progress import Progress

DEATHS_ALONE = 2
"""After this many deaths of a server, a record is sent alone, so that only it can cause a further death."""
DEATHS_LIMIT = 3


class Judgement:
    """Counts consecutive failures. `fatal` is the error that must end the run, or None."""

    def __init__(
        self, work: Work, paths: RunPaths, backlog: Backlog, committer: Committer, progress: Progress, report: Report
    ) -> None:
        self.fatal: RoostError | None = None
        self._work, self._paths, self._backlog = work, paths, backlog
        self._committer, self._progress, self._report = committer, progress, report
        self._failures = 0
        self._successes = 0
        self._before: dict[int, int] = {}
        """For each position, the number of successes of the session at its last failed attempt."""
        self._condemned: list[int] = []

    def succeeded(self, row: Row) -> None:
        """Note that a record is done. Records that failed just before it were therefore at fault themselves."""
        self._progress.finished(row)
        self._failures = 0
        self._successes += 1
        self._condemned.clear()

    def end(self, error: RoostError) -> None:
        """End the run with this error, unless it is ending with another."""
        self.fatal = self.fatal or error

    async def failed(self, task: Task, endpoint: Endpoint, life: tuple[int, float], error: TryError) -> None:
        """Decide about an attempt that failed on `endpoint`, whose life was `life` when the attempt began.

        If no other record has succeeded since the record's last failed attempt, and others are open, the record is
        tried again, because the server may be broken. In that case the series of failures ends the session.
        """
        if isinstance(error, HeldUpError):
            self._progress.state.retries += 1
            self._backlog.retry(task, time.monotonic())
            return
        if isinstance(error, ServerGoneError):
            endpoint.refresh()
            if not endpoint.ready or endpoint.life != life:
                await self._died(task)
                return
        self._failures += 1
        assignment = self._work.assignment
        before = self._before.get(task.position, -1 if assignment.max_attempts == 1 else self._successes)
        self._before[task.position] = self._successes
        others_tell = self._successes > before or (len(self._backlog) == 0 and endpoint.requests <= 1)
        if self._failures >= assignment.max_consecutive_failures:
            self._give_up(str(error))
        elif isinstance(error, RefusedError) or (others_tell and task.failures + 1 >= assignment.max_attempts):
            await self._quarantine(task, str(error))
        else:
            self._progress.state.retries += 1
            self._backlog.retry(task, time.monotonic(), failed=True)

    async def _died(self, task: Task) -> None:
        if task.deaths + 1 >= DEATHS_LIMIT:
            await self._quarantine(
                task, f"The server died in all {DEATHS_LIMIT} attempts, the last time with no other record in flight."
            )
            return
        self._progress.state.retries += 1
        self._backlog.retry(task, time.monotonic(), died=True)

    def _give_up(self, cause: str) -> None:
        """End the run, and open the records that the series of failures quarantined, if the ledger can be written."""
        what = f"{self._failures} consecutive attempts failed, the last with: {cause}"
        try:
            with Ledger(self._paths.ledger) as ledger:
                self._progress.state.counts.quarantined -= ledger.forget(self._condemned)
            self._condemned.clear()
        except HostError as error:
            left = f"{len(self._condemned)} of these records stay quarantined: {error.message}"
            what = f"{what} {left}"
        self.end(
            HostError(
                what,
                remedy="Repair the cause (`inv logs` shows the server's log). Then the same command resumes the run.",
            )
        )

    async def _quarantine(self, task: Task, cause: str) -> None:
        index, rows = int(self._work.index[task.position]), len(self._work.tokens(task.position))
        row = Row(index, "quarantined", rows, self._work.assignment.epoch, cause=cause, attempts=task.attempt)
        try:
            await self._committer.commit(row)
        except HostError as error:
            self.end(error)
            return
        self._condemned.append(index)
        self._progress.finished(row)
        self._report.progress(f"Record {index} is quarantined: {cause}")
