"""Waits until GPU memory is given back: the memory of a killed process can stay charged for seconds.

Runs on the host, called by `stop`, and by `serve` before it starts a server. Read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import psutil

from remote.report import Report
from remote.servers.lifecycle.ending import wait_until
from remote.servers.probing import gpu
from remote.shared.messages.server import GpuId
from remote.shared.processes import is_zombie

MEMORY_SECONDS = 60.0


def await_idle(wanted: Collection[GpuId], report: Report) -> list[gpu.Gpu]:
    """Wait until the memory of these GPUs is back to idle; returns the GPUs where it is not after `MEMORY_SECONDS`."""
    return _await(wanted, lambda found: not found.is_idle, report)


def await_orphaned(wanted: Collection[GpuId], report: Report) -> list[gpu.Gpu]:
    """Wait likewise, but only for memory that no living process of this host holds."""
    return _await(wanted, lambda found: not found.is_idle and not _is_held(found), report)


def _await(wanted: Collection[GpuId], charged: Callable[[gpu.Gpu], bool], report: Report) -> list[gpu.Gpu]:
    if not wanted:
        return []

    def busy() -> list[gpu.Gpu]:
        known = gpu.gpus()
        chosen = gpu.indices(wanted, known)
        return [found for found in known if found.index in chosen and charged(found)]

    if not (left := busy()):
        return []
    report.progress("waiting for GPU memory to be given back")

    def idle() -> bool:
        left[:] = busy()
        return not left

    wait_until(idle, MEMORY_SECONDS)
    return left


def _is_held(found: gpu.Gpu) -> bool:
    """Return whether a living process is charged; in a container, the driver may tell pids of the outer host."""
    return any(_lives(pid) for pid in found.processes)


def _lives(pid: int) -> bool:
    try:
        return not is_zombie(psutil.Process(pid))
    except psutil.Error:
        return False
