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
    """The place holds another run than the one that was asked for; never taken for "there is nothing of this run"."""

    kind = "other-run"


class HostError(RoostError):
    """The host cannot do what was asked (exit code 1): a missing path, a taken port, a full disk."""

    kind = "host"


class PythonError(HostError):
    """The Python that the inventory names for a host cannot run Roost there; another one on that host may."""

    kind = "python"


class RecordError(RoostError):
    """One record failed a check; it is quarantined with this cause, and the other records continue."""

    kind = "record"


class ForeignFileError(HostError, OSError):
    """A file that Roost left has become a link, a FIFO, a device or another user's: it is neither read nor written.

    Also an OSError, so that code which can do without the file treats it as unreadable.
    """

    def __init__(self, path: object, what: str) -> None:
        super().__init__(
            f"{path} is {what}, so it is not Roost's.",
            remedy="Find out who put it there, and remove it.",
        )
        self.strerror = self.message


def told(kind: str, message: str, remedy: str = "", details: dict[str, object] | None = None) -> UsageError | HostError:
    """Return the error that another process has told of: a UsageError if it was one there, otherwise a HostError.

    `kind` stays the other process's word, for `--json`.
    """
    made = UsageError if kind in (UsageError.kind, OtherRunError.kind) else HostError
    error = made(message, remedy=remedy, details=details)
    error.kind = kind
    return error


def of_the_disk(error: OSError) -> HostError | None:
    """Return a sentence about a full, read-only or failing disk; None for any other error."""
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
