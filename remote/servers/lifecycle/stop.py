"""The verb `stop`: ends this workdir's servers, and names other processes in their way, which only force ends.

Runs on the host, called by `inv stop` and `inv free`. When it is done, ports are free, GPU memory is back to idle, dump
directories are empty and leftover shared memory is removed; whatever remains is named with its owner.
"""

from __future__ import annotations

import signal
from pathlib import Path

from remote.context import Context
from remote.lock import host_lock
from remote.servers.housekeeping import dump, shm
from remote.servers.lifecycle import ending, records
from remote.servers.lifecycle.stopping import describe_remaining, server_processes, server_rows, stop_server, zombies
from remote.servers.probing import gpu, memory
from remote.servers.probing.holders import Holder
from remote.servers.probing.obstacles import find_obstacles
from remote.shared.messages.server import Needs, ProcessRow, ServerState, StopRequest, StopResult
from remote.shared.processes import deliver, is_zombie


def stop(request: StopRequest, context: Context) -> StopResult:
    """Stop the named servers, or all of this workdir; with `dry_run` only list the processes that would end."""
    names = records.chosen(context.workdir, request.names)
    states = [state for name in names if (state := records.load(context.workdir.server(name))) is not None]
    if request.dry_run:
        return _listed(request, states)
    with host_lock(context, "free" if request.everything else "stop", wait=request.wait_for_lock):
        return _stop(request, states, context)


def _listed(request: StopRequest, states: list[ServerState]) -> StopResult:
    charged = gpu.charged()
    result = StopResult()
    for state in states:
        rows = server_rows(state, charged)
        result.processes += rows
        result.stopped += [state.name] if rows else []
    own = {row.pid for row in result.processes}
    result.others = [row for row in _rows(_obstacles(request, states), charged) if row.pid not in own]
    return result


def _stop(request: StopRequest, states: list[ServerState], context: Context) -> StopResult:
    result = StopResult(forced=request.force)
    charged = gpu.charged()
    for state in states:
        rows = server_rows(state, charged)
        if rows:
            context.report.progress(f"stopping {state.name}")
            result.stopped.append(state.name)
            result.processes += rows
        result.remaining += stop_server(context.workdir.server(state.name), state, request.grace_seconds)
    obstacles = _obstacles(request, states)
    result.others = _rows(obstacles, charged)
    if request.force and obstacles:
        context.report.progress(f"ending {len(obstacles)} processes that stand in the way")
        result.remaining += _end(obstacles, request.grace_seconds)
    if request.force or not obstacles:
        result.remaining += _await_memory(request, states, context)
    result.notes += zombies(result.processes + (result.others if request.force else []))
    result.freed += _empty_dumps(request, states, context)
    result.freed += _remove_shm(request, states)
    return result


def _needs(request: StopRequest, states: list[ServerState]) -> list[Needs]:
    """Return the ports, GPUs and dump directories of the recorded and the requested servers; only of those named."""
    wanted = [need for need in request.needs if not request.names or need.server in request.names]
    return wanted + [
        Needs(
            server=state.name,
            port=state.port,
            gpus=state.spec.gpus,
            dump_dir=state.capture.dump_dir if state.capture else None,
        )
        for state in states
    ]


def _obstacles(request: StopRequest, states: list[ServerState]) -> list[Holder]:
    return find_obstacles(_needs(request, states), gpu.gpus(), everything=request.everything)


def _rows(holders: list[Holder], charged: dict[int, int]) -> list[ProcessRow]:
    return [holder.row(charged) for holder in holders]


def _end(holders: list[Holder], grace_seconds: float) -> list[str]:
    """End exactly these processes; returns a sentence for each that remains."""
    processes = [holder.process for holder in holders]

    def living() -> bool:
        return any(process.is_running() and not is_zombie(process) for process in processes)

    deliver(processes, signal.SIGTERM)
    if not ending.wait_until(lambda: not living(), grace_seconds):
        deliver(processes, signal.SIGKILL)
        ending.wait_until(lambda: not living(), ending.KILL_SECONDS)
    return [describe_remaining(process) for process in processes if process.is_running() and not is_zombie(process)]


def _await_memory(request: StopRequest, states: list[ServerState], context: Context) -> list[str]:
    """Wait until the memory of the needed GPUs is back to idle; returns a sentence for each GPU where it is not."""
    wanted = {one for need in _needs(request, states) for one in need.gpus}
    return [found.describe_charge() for found in memory.await_idle(wanted, context.report)]


def _empty_dumps(request: StopRequest, states: list[ServerState], context: Context) -> list[str]:
    """Empty the dump directories that this workdir's servers claimed and no longer use; returns a sentence for each.

    A directory that another workdir's server claimed last is left as it is.
    """
    freed = []
    for folder in sorted({Path(need.dump_dir) for need in _needs(request, states) if need.dump_dir}):
        claimed = dump.claimed_by(folder)
        ours = claimed.startswith(f"{context.workdir.servers}/")
        in_use = any(server_processes(state) for state in states if state.mark == claimed)
        if ours and not in_use and (size := dump.empty(folder)):
            freed.append(f"{_amount(size)} of dumps in {folder}")
    return freed


def _remove_shm(request: StopRequest, states: list[ServerState]) -> list[str]:
    """Remove shared memory of dead processes; without `everything`, only what is younger than the stopped servers."""
    if not states and not request.everything:
        return []
    since = 0.0 if request.everything else min(state.started_at for state in states)
    found = shm.leftovers(since)
    size = shm.remove(found)
    return [f"{_amount(size)} of shared memory in {len(found)} files of dead processes"] if found else []


def _amount(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB" if size >= 1 << 20 else f"{size / (1 << 10):.0f} KiB"
