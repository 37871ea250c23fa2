"""Repeats the canary while a run keeps a server busy, to check that capture is right under load.

Runs on the host inside the extractor's event loop. The first canary runs alone, before the server counts as ready. The
canaries here find faults that only occur among other requests (a stale buffer, a neighbour's rows, a slot that moved).
"""

from __future__ import annotations

import asyncio
import time

import numpy as np

from remote.extract.prefill import prefill
from remote.servers.probing.canary import capture_canary
from remote.shared.errors import HostError
from remote.shared.supervised.tasks import Tasks
from remote.work.endpoint import Endpoint
from remote.work.failures import AttemptError, RefusedError, ServerGoneError

FIRST_SECONDS = 30.0
"""Seconds from a server's first request to its first canary, after which the server has its full load."""
EVERY_SECONDS = 600.0


class Canaries:
    """Sends canaries, one at a time to each server. `wrong` is the message of the first wrong canary."""

    def __init__(self, tasks: Tasks) -> None:
        self._owner = tasks
        self.passed = 0
        self.wrong: HostError | None = None
        self._due: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def send_where_due(self, endpoint: Endpoint) -> None:
        """Send a canary to the server if it is busy and its last canary was some time ago."""
        now = time.monotonic()
        if not endpoint.requests or not endpoint.ready:
            return
        if now < self._due.setdefault(endpoint.name, now + FIRST_SECONDS):
            return
        self._due[endpoint.name] = now + EVERY_SECONDS
        task = self._owner.start(self._send(endpoint), f"the canary of {endpoint.name!r}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for the canaries in flight. Each has the deadlines of its request and of its dump."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _send(self, endpoint: Endpoint) -> None:
        life, client = endpoint.life, endpoint.client
        assert client is not None

        async def send(tokens: list[int], rid: str) -> object:
            return await prefill(client, rid, np.array(tokens, np.int32), logprobs=False)

        try:
            await capture_canary(send, endpoint.capture)
            self.passed += 1
        except (ServerGoneError, AttemptError, RefusedError):
            return  # no verdict on capture; the next canary follows soon
        except HostError as error:
            if endpoint.ready and endpoint.life == life:
                what = f"Under load, the server {endpoint.name!r} captured a canary that it had captured rightly before"
                self.wrong = self.wrong or HostError(f"{what}: {error.message}", remedy=error.remedy)
