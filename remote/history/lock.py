"""The recorder's lock, which the kernel releases at its end, with a line that names its process and payload."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from remote.context import Context
from remote.shared.files import make_directory, open_own, read_own
from remote.shared.messages.envelope import Message
from remote.shared.messages.server import ProcessRef
from remote.shared.processes import find, reference


class Holder(Message):
    """The running recorder."""

    process: ProcessRef
    payload: str
    """The folder of the payload that the recorder was started from."""


@contextmanager
def recorder_lock(context: Context) -> Iterator[bool]:
    """Be this host's only recorder within the block; yields False if another recorder runs."""
    path = context.workdir.recorder.lock
    make_directory(path.parent)
    descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        holder = Holder(process=reference(os.getpid()), payload=str(context.payload))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.model_dump_json().encode(), 0)
        yield True
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(context: Context) -> Holder | None:
    """Return the recorder that runs on this host, or None."""
    try:
        found = Holder.model_validate_json(read_own(context.workdir.recorder.lock))
    except (OSError, ValidationError):
        return None
    return found if find(found.process) is not None else None
