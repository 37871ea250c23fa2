"""How a server's processes end: SIGTERM to its leader, a grace period, SIGKILL to all that is left of it.

Runs on the host, called by the supervisor and by `stop`. Ends only what `processes.members` finds for one record.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import psutil

from remote.shared.messages.server import ProcessRef
from remote.shared.processes import deliver, find, members

GRACE_SECONDS = 30.0
"""SGLang finishes its running requests and closes down; 10 s were seen on an idle CPU server."""
KILL_SECONDS = 10.0
"""How long SIGKILL may take to show: a process that frees hundreds of GB is not gone at once."""
POLL_SECONDS = 0.1


def end(ref: ProcessRef, mark: str, grace_seconds: float = GRACE_SECONDS) -> list[psutil.Process]:
    """End every process of a server within `grace_seconds`; returns those that are still there after SIGKILL.

    The leader alone gets the first SIGTERM: SGLang then ends its ranks in order, while a rank that is terminated
    beside it makes the leader report a crash. Without a leader, every member gets it.
    """
    leader = find(ref)
    deliver([leader] if leader else members(ref, mark), signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    if wait_until(lambda: find(ref) is None, grace_seconds):
        deliver(members(ref, mark), signal.SIGTERM)
        wait_until(lambda: not members(ref, mark), deadline - time.monotonic())
    return kill(ref, mark)


def kill(ref: ProcessRef, mark: str) -> list[psutil.Process]:
    """SIGKILL until nothing is left, children that were forked meanwhile included; returns what does not go."""

    def gone() -> bool:
        left = members(ref, mark)
        deliver(left, signal.SIGKILL)
        return not left

    wait_until(gone, KILL_SECONDS)
    return members(ref, mark)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll `condition` until it holds or the time is over; it is tried at least once."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
