"""Writes records to this host's disk in threads. If the disk is full, waits for room and loses nothing.

Runs on the host, called inside the dispatcher's event loop.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from remote.shared.errors import HostError
from remote.work.failures import AttemptError

DISK_POLL_SECONDS = 0.5
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")


@dataclass(frozen=True)
class DiskWriter:
    """The writer of all attempts of a session."""

    pool: Executor
    has_room: Callable[[int], bool]
    """Returns whether the shards' file system has room for that many bytes."""
    leaving: Callable[[], bool]
    """Returns whether the session is ending and only finishes records in flight."""

    async def write(self, index: int, size: int, write: Callable[..., T], *arguments: object) -> T:
        """Call `write` in a thread. If the disk is full, call it again once there is room for `size` bytes.

        Raises AttemptError if the session ends meanwhile, HostError if the disk fails.
        """
        while True:
            try:
                return await asyncio.get_running_loop().run_in_executor(self.pool, write, *arguments)
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    raise HostError(
                        f"The shard of record {index} could not be written: {error.strerror or error}.",
                        remedy="Repair the disk, then type the same command to continue.",
                    ) from error
            await self._await_room(size)

    async def _await_room(self, size: int) -> None:
        while True:
            if self.leaving():
                raise AttemptError("The disk was full when the run ended.")
            await asyncio.sleep(DISK_POLL_SECONDS)
            if self.has_room(size):
                return
