"""Waits for dumps: an attempt continues when its record's dump is complete, or when capture reports a failure.

Runs on the host inside the extractor's event loop. Lists the dump directories; deletes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

from remote.extract import room
from remote.shared.errors import HostError
from remote.shared.files import read_own
from remote.shared.shard.names import FAILED, WHOLE, stages
from remote.work.failures import AttemptError

SCAN_SECONDS = 0.01
"""Seconds between two scans. Listing a few hundred names in a RAM disk takes about 0.1 ms."""


class CaptureError(AttemptError):
    """Capture reported that it could not capture this record correctly, and why."""


@dataclass(frozen=True)
class Found:
    """The files of a record's dump: a single file, or one file for each pipeline stage in order."""

    parts: tuple[Path, ...]
    whole: Path
    """The path of the complete dump: the only part, or the file into which the parts are joined."""


class Watch:
    """Scans the dump directories while a dump is expected.

    If a directory is removed, all dumps that are expected in it fail at once with VanishedError.
    """

    def __init__(self) -> None:
        self._expected: dict[Path, dict[str, asyncio.Future[Found]]] = {}
        self._wanted = asyncio.Event()
        self._full_at: dict[Path, float] = {}

    def was_full(self, directory: Path, since: float) -> bool:
        """Return whether the directory's file system was almost full at any moment since `since` (the loop's time)."""
        return self._full_at.get(directory, -1.0) >= since

    def expect(self, directory: Path, rid: str) -> asyncio.Future[Found]:
        """Return a future for the files of the dump of `rid`, or a CaptureError. Cancel it to stop waiting.

        Raises RuntimeError if a dump of `rid` is expected already: two attempts must not have one request id.
        """
        if rid in self._expected.get(directory, {}):
            raise RuntimeError(f"a dump of the request {rid} is expected already")
        future: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self._expected.setdefault(directory, {})[rid] = future
        future.add_done_callback(lambda _: self._drop(directory, rid))
        self._wanted.set()
        return future

    async def run(self) -> None:
        """Scan until cancelled."""
        while True:
            await self._wanted.wait()
            for directory, expected in list(self._expected.items()):
                if room.room_bytes(directory) < room.CAUSE_BYTES:
                    self._full_at[directory] = asyncio.get_running_loop().time()
                _look(directory, expected)
            await asyncio.sleep(SCAN_SECONDS)

    def _drop(self, directory: Path, rid: str) -> None:
        expected = self._expected.get(directory, {})
        expected.pop(rid, None)
        if not expected:
            self._expected.pop(directory, None)
        if not self._expected:
            self._wanted.clear()


def _look(directory: Path, expected: dict[str, asyncio.Future[Found]]) -> None:
    try:
        names = set(os.listdir(directory))  # noqa: PTH208 -- names alone, no Path objects, a hundred times a second
    except FileNotFoundError:
        for future in list(expected.values()):
            _fail(future, room.VanishedError(f"The dump directory {directory} was removed."))
        return
    except OSError as error:
        for future in list(expected.values()):
            _fail(future, HostError(f"The dump directory {directory} cannot be read: {error.strerror}."))
        return
    for rid, future in list(expected.items()):
        if future.done():
            continue
        whole = directory / (rid + WHOLE)
        if whole.name in names:
            future.set_result(Found((whole,), whole))
        elif rid + FAILED in names:
            _fail(future, CaptureError(_cause(directory / (rid + FAILED))))
        elif parts := stages(rid, names):
            future.set_result(Found(tuple(directory / part for part in parts), whole))


def _fail(future: asyncio.Future[Found], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _cause(path: Path) -> str:
    try:
        return str(json.loads(read_own(path))["cause"])
    except (OSError, ValueError, KeyError, TypeError):
        return "Capture reported a failure that could not be read."
