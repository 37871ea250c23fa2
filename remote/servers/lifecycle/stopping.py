"""Ends one server of this workdir by its record, even if its processes changed session or name.

Runs on the host, called by `stop` and by `serve` (to replace a server). Ends only processes that the record proves to
be the server's own: by pid and start time, session, or inherited mark.
"""

from __future__ import annotations

import signal
import time

import psutil

from remote.servers.lifecycle import ending, key, records
from remote.servers.probing.holders import Holder, owner, port_holders
from remote.shared.files import write_whole
from remote.shared.messages.server import ProcessRow, ServerState
from remote.shared.paths import ServerPaths
from remote.shared.processes import deliver, find, is_zombie, members, untouchable

SUPERVISOR_SECONDS = 10.0
PORT_SECONDS = 10.0
REAP_SECONDS = 2.0


def stop_server(paths: ServerPaths, state: ServerState, grace_seconds: float = ending.GRACE_SECONDS) -> list[str]:
    """End one server and its supervisor, and record the end; returns a sentence for each process that remains.

    The supervisor ends the server as well, so the grace period is written down for it first.
    """
    was_running = bool(server_processes(state))
    supervisor = find(state.supervisor)
    if supervisor is not None:
        write_whole(paths.grace, str(grace_seconds).encode())
        deliver([supervisor], signal.SIGTERM)
    left: list[psutil.Process] = []
    if state.server is not None:
        left = ending.end(state.server, state.mark, grace_seconds)
    if supervisor is not None and supervisor.pid not in untouchable():
        _await_supervisor(state, supervisor)
    last = records.load(paths) or state
    if last.status in ("starting", "ready") or last.restart_at is not None:
        ended = {"status": "stopped", "ended_at": time.time(), "restart_at": None}
        records.save(paths, last.model_copy(update=ended))
    if not left:
        key.withdraw(paths)  # a killed supervisor could not remove the key
    return [describe_remaining(process) for process in left] + (_port_remaining(state) if was_running else [])


def server_processes(state: ServerState) -> list[psutil.Process]:
    """Return the living processes of the server: its supervisor, its leader and everything that they started."""
    found = members(state.server, state.mark) if state.server else []
    supervisor = find(state.supervisor)
    return ([supervisor] if supervisor else []) + found


def server_rows(state: ServerState, charged: dict[int, int]) -> list[ProcessRow]:
    """Return the server's living processes as rows for a person; `charged` is GPU memory by pid."""
    return [Holder(process, owner=owner(state.mark)).row(charged) for process in server_processes(state)]


def describe_remaining(process: psutil.Process) -> str:
    """Return a sentence on why a process survived SIGKILL, as far as the kernel tells."""
    holder = Holder(process)
    try:
        status = process.status()
    except psutil.NoSuchProcess:
        return f"pid {process.pid} ended just now"
    if status == psutil.STATUS_DISK_SLEEP:
        return (
            f"{holder.describe()} sits in an uninterruptible kernel call (state D), most often a GPU driver or network "
            "file system that hangs: the process ends when that call returns, or with a reboot"
        )
    return f"{holder.describe()} still runs after SIGKILL (state {status}): this user may not end it"


def zombies(rows: list[ProcessRow]) -> list[str]:
    """Return a sentence for each process of `rows` that ended but was not reaped; such a process holds nothing.

    This is usual in a container whose PID 1 is not an init.
    """
    ending.wait_until(lambda: not any(map(_unreaped, rows)), REAP_SECONDS)
    return [said for row in rows if (said := _unreaped(row))]


def _unreaped(row: ProcessRow) -> str:
    try:
        process = psutil.Process(row.pid)
        parent = process.parent()
    except psutil.NoSuchProcess:
        return ""
    if not is_zombie(process) or parent is None:
        return ""
    return f"pid {row.pid} ended and holds nothing, but {parent.name()} (pid {parent.pid}) does not reap it"


def _await_supervisor(state: ServerState, supervisor: psutil.Process) -> None:
    """Wait until the supervisor has written the last record; kill it if it hangs, and `stop_server` writes instead."""
    if not ending.wait_until(lambda: find(state.supervisor) is None, SUPERVISOR_SECONDS):
        deliver([supervisor], signal.SIGKILL)


def _port_remaining(state: ServerState) -> list[str]:
    """Wait until no process listens on the port; returns a sentence for each that still does after some seconds."""
    ending.wait_until(lambda: not port_holders(state.port), PORT_SECONDS)
    return [f"port {state.port} is held by {holder.describe()}" for holder in port_holders(state.port)]
