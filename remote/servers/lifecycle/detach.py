"""Starts a server's supervisor so that it outlives this verb, the SSH connection and the laptop.

Runs on the host, called by `serve`.
"""

from __future__ import annotations

import subprocess
import sys

from remote import detached
from remote.context import Context
from remote.servers.lifecycle import records
from remote.servers.lifecycle.causes import last_lines
from remote.servers.lifecycle.ending import wait_until
from remote.servers.lifecycle.logfile import tail
from remote.shared.errors import HostError
from remote.shared.files import make_directory
from remote.shared.messages.envelope import Call
from remote.shared.messages.server import ServerState, SuperviseRequest
from remote.shared.paths import ServerPaths

TAKEOVER_SECONDS = 60.0


def start_supervisor(state: ServerState, order: SuperviseRequest, context: Context) -> None:
    """Start the supervisor and return once it has taken over `state.json`; raises HostError if it does not.

    `order` holds the server's environment. It goes through a pipe, so that secrets reach no file and no command line.
    """
    paths = context.workdir.server(state.name)
    make_directory(paths.root)
    call = Call(
        verb="supervise",
        workdir=str(context.workdir.root),
        operator=context.operator,
        request=order.model_dump(),
    )
    argv = [sys.executable, "-m", "remote", "supervise"]
    process = detached.start(argv, cwd=context.payload, log=paths.supervisor_log, stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        process.stdin.write(call.model_dump_json().encode() + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass  # the supervisor has ended already, which is reported below
    wait_until(lambda: process.poll() is not None or _has_taken_over(paths, process.pid), TAKEOVER_SECONDS)
    if not _has_taken_over(paths, process.pid):
        said = " ".join(last_lines(tail(paths.supervisor_log), 1))
        raise HostError(
            f"The supervisor of server {state.name!r} did not start: {said or 'it said nothing'}.",
            remedy=f"See {paths.supervisor_log}.",
        )


def _has_taken_over(paths: ServerPaths, pid: int) -> bool:
    state = records.load(paths)
    return state is not None and state.supervisor is not None and state.supervisor.pid == pid
