"""Identifies the processes that the practice fleet started, so that no other process is mistaken for one of them.

Laptop's side, called by `sshd.py` and `fleet.py`; signals only a process whose pid and create time both match.
"""

from __future__ import annotations

import signal
from contextlib import suppress

import psutil

from remote.shared import processes
from remote.shared.messages.server import ProcessRef

GRACE_SECONDS = 5.0


def reference(process: psutil.Process) -> ProcessRef:
    """Describe a living process."""
    return processes.reference(process.pid)


def find(ref: ProcessRef | None) -> psutil.Process | None:
    """Return the process that `ref` describes, or None if it has ended."""
    return processes.find(ref)


def end(processes: list[psutil.Process], grace_seconds: float = GRACE_SECONDS) -> None:
    """Send SIGTERM, and SIGKILL to processes that are still running after `grace_seconds`."""
    for process in processes:
        _deliver(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=grace_seconds)
    for process in alive:
        _deliver(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace_seconds)


def _deliver(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
