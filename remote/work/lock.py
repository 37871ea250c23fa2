"""Locks for a run's only extractor and for its shards. The kernel releases them when a process ends, so none is stale.

Runs on the host, called to start an extractor, and to find out whether an extractor lives.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from remote.shared.errors import HostError
from remote.shared.files import make_directory, open_own
from remote.shared.paths import RunPaths

_EXCLUSIVE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""`struct flock` of 64-bit Linux, for locks of the open file description. A query does not take the lock, so queries do
not see each other, and an extractor can start meanwhile.
"""


class RunningError(HostError):
    """The run already has an extractor."""

    kind = "running"


@contextmanager
def run_lock(paths: RunPaths) -> Iterator[None]:
    """Be the run's only extractor within the block; the kernel releases the lock when the process ends."""
    make_directory(paths.root)
    descriptor = open_own(paths.lock, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _EXCLUSIVE)
        except (BlockingIOError, PermissionError):
            raise RunningError(f"The run {paths.root.name!r} already has an extractor on this host.") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def shards_held(paths: RunPaths) -> Iterator[None]:
    """Keep other processes from deciding which shards belong to the ledger, within the block.

    Held at a session's start, which deletes shards without a row, and while a shard is replaced by its compressed form.
    Waits for another holder; the kernel releases the lock when its process ends.
    """
    descriptor = os.open(paths.shards, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_locked(paths: RunPaths) -> bool:
    """Return whether an extractor of the run lives, whatever its state file says."""
    try:
        descriptor = open_own(paths.lock)
    except FileNotFoundError:
        return False
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _EXCLUSIVE)
    finally:
        os.close(descriptor)
    (kind,) = struct.unpack_from("h", found)
    return bool(kind != fcntl.F_UNLCK)
