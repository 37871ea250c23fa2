"""Lets one operator at a time change a host: `<workdir>/lock`, held by the kernel, readable by people.

Runs on the host, called by the verbs that change something. The kernel's lock (flock) ends with its process, so a lock
can never be stale; the text inside says who, what and since when, for the sentence that a second operator reads.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from remote.context import Context
from remote.shared.errors import HostError
from remote.shared.files import make_directory, open_own, read_own
from remote.shared.messages.envelope import Message

POLL_SECONDS = 0.2


class Holder(Message):
    """Who holds the lock."""

    operator: str
    action: str
    pid: int
    since: float


class LockedError(HostError):
    """Another operator's command is at work on this host."""

    kind = "locked"


@contextmanager
def host_lock(context: Context, action: str, *, wait: bool = False) -> Iterator[None]:
    """Hold the host's lock within the block.

    Raises LockedError that names the holder if the lock is taken; with `wait`, says so once and waits without limit
    (until the call's deadline).
    """
    descriptor = _open(context.workdir.lock)
    try:
        if not _take(descriptor):
            if not wait:
                raise LockedError(
                    f"{_describe(context.workdir.lock)} and holds this host's lock.",
                    remedy="Wait for it (--wait), or end that command.",
                )
            context.report.progress(f"{_describe(context.workdir.lock)}; waiting for it to end")
            while not _take(descriptor):
                time.sleep(POLL_SECONDS)
        _write(descriptor, Holder(operator=context.operator, action=action, pid=os.getpid(), since=time.time()))
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """Write the file in place, because the kernel's lock belongs to this inode."""
    make_directory(path.parent)
    return open_own(path, os.O_RDWR | os.O_CREAT)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(descriptor: int, holder: Holder) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, holder.model_dump_json().encode(), 0)


def _describe(path: Path) -> str:
    try:
        holder = Holder.model_validate_json(read_own(path))
    except (ValidationError, OSError):
        return "Another command has just begun here"
    minutes, seconds = divmod(int(time.time() - holder.since), 60)
    who = holder.operator or "Somebody"
    return f"{who} has been at `{holder.action}` for {minutes} min {seconds} s (pid {holder.pid})"
