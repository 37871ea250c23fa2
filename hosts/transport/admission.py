"""Limits the simultaneous logins to one SSH server, and repeats a login that the server drops.

With more than `MaxStartups` simultaneous logins (10 by default), sshd drops logins at random. Forty inventory entries
on one sshd, or behind one bastion, must therefore not log in together.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from hosts.transport.sentences import LoginDroppedError
from hosts.transport.settings import Hop

T = TypeVar("T")

LOGINS_AT_ONCE = 4
"""Simultaneous logins to one address and port. A login takes about 50 ms, so the last of forty waits half a second."""
RETRY_SECONDS = 20.0
FIRST_PAUSE_SECONDS = 0.4
LONGEST_PAUSE_SECONDS = 3.0

_doors: dict[tuple[str, int], threading.BoundedSemaphore] = {}
_guard = threading.Lock()


@contextmanager
def admitted(hops: Sequence[Hop]) -> Iterator[None]:
    """Hold a place at each of these servers for the time of a login."""
    with ExitStack() as stack:
        for address in sorted(
            {(hop.hostname, hop.port) for hop in hops}
        ):  # the same order in every thread, so no deadlock
            with _guard:
                door = _doors.setdefault(address, threading.BoundedSemaphore(LOGINS_AT_ONCE))
            stack.enter_context(door)
        yield


def login(hops: Sequence[Hop], attempt: Callable[[], T]) -> T:
    """Return the result of `attempt`, which is repeated after a random and growing pause if the server drops the login.

    Raises LoginDroppedError if the server still drops the login after 20 s, and every other error of `attempt` at once.
    """
    ends_at = time.monotonic() + RETRY_SECONDS
    for number in itertools.count():
        try:
            with admitted(hops):
                return attempt()
        except LoginDroppedError:
            pause = random.uniform(0, min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**number))  # noqa: S311
            if time.monotonic() + pause > ends_at:
                raise
            time.sleep(pause)
    raise AssertionError("unreachable: the loop ends by return or raise")
