"""Starts a run's detached work so that it survives this verb, the SSH connection and the laptop; the verb `extract`.

Runs on the host, without laptop or SSH. A run's name starts detached work, as the laptop does. The folder of an
assignment runs the work in this process, as other launchers do: Slurm, Ray, a container's entrypoint.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from remote import detached
from remote.context import Context
from remote.report import last_failure
from remote.shared.errors import HostError, OtherRunError, RoostError, UsageError
from remote.shared.files import open_own
from remote.shared.messages.extract import Assignment, ExtractorState, ExtractRequest
from remote.shared.paths import RunPaths
from remote.work import epochs
from remote.work.known import known
from remote.work.lock import is_locked, run_lock
from remote.work.progress import read_state, wish

if TYPE_CHECKING:
    from remote.work.assignment import Work
    from remote.work.dispatcher import Dispatcher
    from remote.work.holding import Holding

KINDS = {"answer": "remote.answer.answerer:Answerer", "extract": "remote.extract.extractor:Extractor"}
"""The kinds of detached work, by the task that starts them."""
START_SECONDS = 60.0
POLL_SECONDS = 0.05
_LOG_TAIL_BYTES = 1 << 16


def extract(request: ExtractRequest, context: Context) -> ExtractorState:
    """The verb `extract`: return when the detached extractor works, or, in the foreground, when it has ended."""
    if bool(request.run) == bool(request.assignment):
        raise UsageError("Extraction needs either --run or --assignment, and not both.")
    if request.assignment:
        folder = Path(request.assignment).expanduser()
        return run_here(_adopt(folder, context), context, then_stop=request.then_stop)
    paths = context.workdir.run(request.run)
    if request.identity is not None:
        known(context.workdir, request.identity)
    _check_epoch(paths, request.epoch)
    return detach(paths, context, then_stop=request.then_stop)


def run_here(paths: RunPaths, context: Context, *, then_stop: bool | None = None) -> ExtractorState:
    """Be the run's extractor, epoch after epoch, until no record is open or a person stops the run."""
    from remote.work.holding import Holding

    with run_lock(paths):
        if wish(paths) == "stop":  # the request was for the session before
            paths.control.unlink(missing_ok=True)
        while True:
            holding = Holding(paths)
            assignment = holding.work.assignment
            context.report.progress(
                f"epoch {assignment.epoch}: {assignment.records:,} records, {assignment.tokens:,} tokens"
            )
            state = asyncio.run(_session(holding, paths, context))
            if (newest := epochs.newest_epoch(paths)) != assignment.epoch:
                context.report.progress(f"epoch {newest} replaces epoch {assignment.epoch}")
            elif state.status == "complete" and holding.has_grown():
                context.report.progress("records came from another host")
            else:
                if state.status == "complete" and (assignment.then_stop if then_stop is None else then_stop):
                    _stop_servers(assignment, context)
                return state


def detach(paths: RunPaths, context: Context, *, then_stop: bool | None = None) -> ExtractorState:
    """Start the extractor in a session of its own, with its output in the run's log; return its first state.

    If the run has an extractor, that extractor continues, and takes up a newer epoch by itself. An extractor that was
    told to stop is awaited and replaced. A paused run stays paused until it is told to resume.
    """
    folder = epochs.newest(paths)
    if is_locked(paths) and wish(paths) == "stop":
        _await_end(paths)
    if is_locked(paths):
        return _await_state(paths, None)
    argv = [sys.executable, "-m", "remote", "extract", "--workdir", str(context.workdir.root.resolve())]
    argv += ["--output", "log", "--assignment", str(folder.resolve())]
    if then_stop is not None:
        argv += ["--then-stop", str(then_stop).lower()]
    return _await_state(paths, detached.start(argv, cwd=context.payload, log=paths.log))


def _await_end(paths: RunPaths) -> None:
    """Wait until an extractor that was told to stop has finished its records in flight."""
    deadline = time.monotonic() + START_SECONDS
    while is_locked(paths):
        if time.monotonic() > deadline:
            raise HostError(
                f"The extractor of the run {paths.root.name!r} was told to stop, and still finishes the records in "
                f"flight.",
                remedy="`inv status` shows how many are left. Type the command again when it has stopped.",
            )
        time.sleep(POLL_SECONDS)


def _adopt(folder: Path, context: Context) -> RunPaths:
    from remote.work.assignment import adopt

    return adopt(folder, context.workdir)


async def _session(holding: Holding, paths: RunPaths, context: Context) -> ExtractorState:
    from remote.work.session import begin

    kind = _kind(holding.work)
    opened = begin(paths, holding, kind.refusals(holding.work))
    dispatcher = kind(context.workdir, paths, holding, opened, context.report)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, dispatcher.stop)
    return await dispatcher.run()


def _kind(work: Work) -> type[Dispatcher]:
    module, name = KINDS[work.assignment.task].split(":")
    kind: type[Dispatcher] = getattr(importlib.import_module(module), name)
    return kind


def _check_epoch(paths: RunPaths, epoch: int | None) -> None:
    """Raise UsageError if this host lacks the run's epoch: its older share may have been given to other hosts."""
    newest = epochs.newest_epoch(paths)
    if epoch is not None and newest is not None and newest < epoch:
        raise UsageError(
            f"The run {paths.root.name!r} is at epoch {epoch}, but this host only has epoch {newest}.",
            remedy="`inv extract` gives this host its share of the new epoch.",
        )


def _await_state(paths: RunPaths, process: subprocess.Popen[bytes] | None) -> ExtractorState:
    """Return the extractor's first state when it is written; raises the extractor's error if it ended instead."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        state = read_state(paths)
        ours = state is not None and state.process is not None and (process is None or state.process.pid == process.pid)
        if ours and state is not None and (state.status != "failed" or process is None):
            return state
        if process is not None and process.poll() is not None:
            raise _last_words(paths, process.returncode)
        time.sleep(POLL_SECONDS)
    raise HostError(f"The extractor did not start within {START_SECONDS:g} s.", remedy=f"See {paths.log}.")


def _last_words(paths: RunPaths, code: int) -> RoostError:
    """Return the error in the extractor's own last line of its log."""
    with os.fdopen(open_own(paths.log), "rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_TAIL_BYTES))
        said = last_failure(log.read().decode(errors="replace"))
    if said is not None:
        kinds: dict[str, type[RoostError]] = {one.kind: one for one in (UsageError, OtherRunError)}
        return kinds.get(said.kind, HostError)(said.message, remedy=said.remedy)
    return HostError(f"The extractor ended at once with code {code}.", remedy=f"See {paths.log}.")


def _stop_servers(assignment: Assignment, context: Context) -> None:
    from remote.servers.lifecycle.stop import stop
    from remote.shared.messages.server import StopRequest

    result = stop(StopRequest(names=assignment.server_names, wait_for_lock=True), context)
    context.report.progress(f"stopped {', '.join(result.stopped) or 'no server'}: the run is complete")
