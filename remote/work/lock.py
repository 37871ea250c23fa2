"""Locks for a run's only extractor and for its shards. The kernel holds them while a process lives, so none is stale.

Runs on the host, called to start an extractor, and to ask whether one lives.
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
"""`struct flock` of Linux on 64 bits. Locks of the open file description: asking about one does not take it, so that
any number of onlookers neither see one another nor keep an extractor from starting."""


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
            raise RunningError(f"The run {paths.root.name!r} already has an extractor here.") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def shards_held(paths: RunPaths) -> Iterator[None]:
    """Keep other processes from deciding which shards belong to the ledger, within the block.

    Held by a session's start, which deletes shards that no row speaks of, and by whoever replaces a shard by its
    compressed form. Waits for the other; ends with its process.
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
