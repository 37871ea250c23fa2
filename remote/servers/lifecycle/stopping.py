"""Ends one server of this workdir by its record, whatever its processes did to hide.

Runs on the host, called by `stop` and by `serve` (to replace one). Ends processes that the record proves to be its own
(pid and create time, session, inherited mark) and no other.
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
    """End one server and its supervisor, and record it; returns what remains, one sentence each.

    The supervisor ends the server as well, so it is told the grace period first.
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
        key.withdraw(paths)  # a supervisor that was killed could not
    return [describe_remaining(process) for process in left] + (_port_remaining(state) if was_running else [])


def server_processes(state: ServerState) -> list[psutil.Process]:
    """The supervisor, the server, and everything that it started, as far as they live."""
    found = members(state.server, state.mark) if state.server else []
    supervisor = find(state.supervisor)
    return ([supervisor] if supervisor else []) + found


def server_rows(state: ServerState, charged: dict[int, int]) -> list[ProcessRow]:
    """The same as a person sees them; `charged` is GPU memory by pid."""
    return [Holder(process, owner=owner(state.mark)).row(charged) for process in server_processes(state)]


def describe_remaining(process: psutil.Process) -> str:
    """Why a process survived SIGKILL, as far as the kernel tells."""
    holder = Holder(process)
    try:
        status = process.status()
    except psutil.NoSuchProcess:
        return f"pid {process.pid} ended just now"
    if status == psutil.STATUS_DISK_SLEEP:
        return (
            f"{holder.describe()} sits in an uninterruptible kernel call (state D), most often a GPU driver or network "
            "file system that hangs: it ends when that call does, or with a reboot"
        )
    return f"{holder.describe()} is still there after SIGKILL (state {status}): this user may not end it"


def zombies(rows: list[ProcessRow]) -> list[str]:
    """Those of `rows` that ended and that nobody reaps, a sentence each: they hold nothing any more.

    Usual in a container whose PID 1 is no init.
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
    """It writes the last record; one that hangs is killed, and `stop_server` writes instead."""
    if not ending.wait_until(lambda: find(state.supervisor) is None, SUPERVISOR_SECONDS):
        deliver([supervisor], signal.SIGKILL)


def _port_remaining(state: ServerState) -> list[str]:
    """The port is free once nobody listens; what still does is not this server's, and is named."""
    ending.wait_until(lambda: not port_holders(state.port), PORT_SECONDS)
    return [f"port {state.port} is held by {holder.describe()}" for holder in port_holders(state.port)]
