"""Waits until started servers are ready, and reports how far each has come.

Runs on the host, called by `serve`. Only reads records and logs, so it may be ended at any moment.
"""

from __future__ import annotations

import time
from pathlib import Path

from remote.context import Context
from remote.servers.lifecycle import records
from remote.servers.lifecycle.causes import relevant_lines
from remote.servers.probing.progress import LogProgress
from remote.shared.errors import HostError
from remote.shared.messages.server import ServerState
from remote.shared.processes import find

POLL_SECONDS = 0.2


def await_ready(names: list[str], context: Context) -> list[ServerState]:
    """Return the states once all servers are ready.

    Raises HostError as soon as a server fails, with the last relevant lines of its log.
    """
    watched = {name: LogProgress() for name in names}
    ready: dict[str, ServerState] = {}
    while len(ready) < len(names):
        for name in names:
            state = _look(name, context)
            if state.status == "ready" and name not in ready:
                _say(name, watched[name], state, context)
                ready[name] = state
                context.report.progress(f"{name}: ready")
            elif state.status == "starting":
                _say(name, watched[name], state, context)
        time.sleep(POLL_SECONDS)
    return [ready[name] for name in names]


def _look(name: str, context: Context) -> ServerState:
    paths = context.workdir.server(name)
    state = records.load(paths)
    if state is None:
        raise HostError(f"The record of server {name!r} was removed while it started.")
    if state.status == "stopped":
        raise HostError(f"Server {name!r} was stopped while it started.")
    if state.status == "failed":
        raise failure(state)
    if find(state.supervisor) is None and records.load(paths) == state:
        raise HostError(
            f"The supervisor of server {name!r} was killed.",
            remedy=f"See {paths.supervisor_log}; `inv stop` ends what is left of the server.",
        )
    return state


def failure(state: ServerState) -> HostError:
    """Return the error for a server that did not become ready: its cause, and the last relevant lines of its log."""
    return HostError(
        f"Server {state.name!r} did not start: {state.cause}",
        remedy=f"See its log: {state.log}.",
        details={
            "server": state.name,
            "exit_code": state.exit_code,
            "log": state.log,
            "lines": relevant_lines(Path(state.log)),
        },
    )


def _say(name: str, progress: LogProgress, state: ServerState, context: Context) -> None:
    for step in progress.poll(Path(state.log)):
        context.report.progress(f"{name}: {step.text}", step.done, step.total, step.unit)
