"""The verb `stop`: ends this workdir's own servers by record, and leaves everything of anyone else's alone.

Runs on the host, called by `inv stop`, and by `serve` to replace a server. Ends processes that one record proves to be
its own (pid and create time, session, inherited mark), and empties the dump directory that the server had claimed.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil

from remote.context import Context
from remote.lock import host_lock
from remote.messages.server import ProcessRow, ServerState, StopRequest, StopResult
from remote.paths import ServerPaths
from remote.servers import dump, ending, gpu, records
from remote.servers.holders import Holder, owner, port_holders
from remote.servers.processes import deliver, find, members, untouchable

SUPERVISOR_SECONDS = 10.0
PORT_SECONDS = 10.0


def stop(request: StopRequest, context: Context) -> StopResult:
    """Stop the named servers, or all of this workdir; with `dry_run` only list what would end."""
    names = records.chosen(context.workdir, request.names)
    if request.dry_run:
        return _planned(names, context)
    result = StopResult()
    with host_lock(context, "stop", wait=request.wait_for_lock):
        for name in names:
            paths = context.workdir.server(name)
            state = records.load(paths)
            assert state is not None
            rows = _rows(state)
            if rows:
                context.report.progress(f"stopping {name}")
                result.stopped.append(name)
            result.processes += rows
            result.remaining += stop_server(paths, state, request.grace_seconds)
            result.freed += _empty_dump(state)
    return result


def stop_server(paths: ServerPaths, state: ServerState, grace_seconds: float = ending.GRACE_SECONDS) -> list[str]:
    """End one server and its supervisor, and record it; returns what remains, one sentence each."""
    was_running = bool(_processes(state))
    supervisor = find(state.supervisor)
    if supervisor is not None:
        deliver([supervisor], signal.SIGTERM)
    left: list[psutil.Process] = []
    if state.server is not None:
        left = ending.end(state.server, state.mark, grace_seconds)
    if (
        supervisor is not None
        and supervisor.pid not in untouchable()
        and not ending.wait_until(lambda: find(state.supervisor) is None, SUPERVISOR_SECONDS)
    ):
        deliver([supervisor], signal.SIGKILL)
    last = records.load(paths) or state
    if last.status in ("starting", "ready") or last.restart_at is not None:
        records.save(paths, last.model_copy(update={"status": "stopped", "ended_at": time.time(), "restart_at": None}))
    return [describe_remaining(process) for process in left] + (_port_remaining(state) if was_running else [])


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


def _port_remaining(state: ServerState) -> list[str]:
    """The port is free once nobody listens; what still does is not this server's, and is named."""
    ending.wait_until(lambda: not port_holders(state.port), PORT_SECONDS)
    return [f"port {state.port} is held by {holder.describe()}" for holder in port_holders(state.port)]


def _processes(state: ServerState) -> list[psutil.Process]:
    found = members(state.server, state.mark) if state.server else []
    supervisor = find(state.supervisor)
    return ([supervisor] if supervisor else []) + found


def _rows(state: ServerState) -> list[ProcessRow]:
    charged = gpu.charged()
    return [Holder(process, owner=owner(state.mark)).row(charged) for process in _processes(state)]


def _planned(names: list[str], context: Context) -> StopResult:
    result = StopResult()
    for name in names:
        state = records.load(context.workdir.server(name))
        rows = _rows(state) if state else []
        result.processes += rows
        result.stopped += [name] if rows else []
    return result


def _empty_dump(state: ServerState) -> list[str]:
    if state.capture is None:
        return []
    folder = Path(state.capture.dump_dir)
    if dump.claimed_by(folder) != state.mark:
        return []
    freed = dump.empty(folder)
    return [f"{folder}: {freed / (1 << 20):.1f} MiB"] if freed else []
