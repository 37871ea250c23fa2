"""Ends a server's processes: SIGTERM to its leader, a grace period, then SIGKILL to every process that is left.

Runs on the host, called by the supervisor and by `stop`. Ends only processes that `processes.members` finds for a
record.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import psutil

from remote.shared.messages.server import ProcessRef
from remote.shared.processes import deliver, find, members

GRACE_SECONDS = 30.0
"""SGLang finishes its running requests first; an idle CPU server was seen to take 10 s."""
KILL_SECONDS = 10.0
"""How long a process may take to end after SIGKILL: freeing hundreds of GB takes seconds."""
POLL_SECONDS = 0.1


def end(ref: ProcessRef, mark: str, grace_seconds: float = GRACE_SECONDS) -> list[psutil.Process]:
    """End every process of a server and return those that are still there after SIGKILL.

    Only the leader gets SIGTERM: SGLang then ends its ranks in order. If a rank got SIGTERM too, the leader would
    report a crash. Without a leader, every member gets SIGTERM. SIGKILL follows after `grace_seconds`.
    """
    leader = find(ref)
    deliver([leader] if leader else members(ref, mark), signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    if wait_until(lambda: find(ref) is None, grace_seconds):
        deliver(members(ref, mark), signal.SIGTERM)
        wait_until(lambda: not members(ref, mark), deadline - time.monotonic())
    return kill(ref, mark)


def kill(ref: ProcessRef, mark: str) -> list[psutil.Process]:
    """Send SIGKILL until no member is left, new children included; returns the processes that do not end."""

    def gone() -> bool:
        left = members(ref, mark)
        deliver(left, signal.SIGKILL)
        return not left

    wait_until(gone, KILL_SECONDS)
    return members(ref, mark)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll `condition` until it holds, and return True; return False once `seconds` have passed.

    The condition is tried at least once.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
