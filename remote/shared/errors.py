"""The one root of Roost's errors, shared by the laptop and the hosts.

A message is one sentence for a person: what was tried and what came back. `remedy` is what to do about it.
The laptop puts the host's name in front, so a message never starts with one.
"""

from __future__ import annotations

import errno


class RoostError(Exception):
    """Anything Roost reports to a person instead of a traceback."""

    kind = "error"
    """Short machine-readable cause; travels in `Failure.kind` and in `--json`."""

    def __init__(self, message: str, *, remedy: str = "", details: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details = details or {}

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class UsageError(RoostError, ValueError):
    """The request is wrong (exit code 2): an unknown host, a flag that contradicts another."""

    kind = "usage"


class OtherRunError(UsageError):
    """The place has another run of the requested name. This is never treated as "there is nothing of this run"."""

    kind = "other-run"


class HostError(RoostError):
    """The host cannot do what was asked (exit code 1): a missing path, a taken port, a full disk."""

    kind = "host"


class PythonError(HostError):
    """The Python that the inventory names for a host cannot run Roost; another Python on that host may."""

    kind = "python"


class RecordError(RoostError):
    """One record failed a check; it is quarantined with this cause, and the other records continue."""

    kind = "record"


class ForeignFileError(HostError, OSError):
    """A file of Roost became a link, a FIFO, a device or another user's file. It is neither read nor written.

    It is also an OSError, so that code which does not need the file treats the file as unreadable.
    """

    def __init__(self, path: object, what: str) -> None:
        super().__init__(
            f"{path} is {what}, so it is not Roost's.",
            remedy="Find out who put it there, and remove it.",
        )
        self.strerror = self.message


def told(kind: str, message: str, remedy: str = "", details: dict[str, object] | None = None) -> UsageError | HostError:
    """Return another process's error: a UsageError if it was one in that process, otherwise a HostError.

    `kind` remains the other process's, for `--json`.
    """
    made = UsageError if kind in (UsageError.kind, OtherRunError.kind) else HostError
    error = made(message, remedy=remedy, details=details)
    error.kind = kind
    return error


def of_the_disk(error: OSError) -> HostError | None:
    """Return the HostError for a full, read-only or failing disk; None for any other error."""
    remedies = {
        errno.ENOSPC: "Make room there (`df -h` and `df -i` show bytes and inodes), and run it again.",
        errno.EDQUOT: "Make room within the quota there, and run it again.",
        errno.EROFS: "Mount it writable again; the kernel makes a failing disk read-only, and `dmesg` says so.",
        errno.EIO: "The disk is failing: `dmesg` says more.",
    }
    if error.errno not in remedies:
        return None
    what = f"{error.filename} could not be written" if error.filename else "A file could not be written"
    return HostError(f"{what}: {error.strerror}.", remedy=remedies[error.errno])
