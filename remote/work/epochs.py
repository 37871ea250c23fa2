"""The assignments of a host: one folder for each epoch, of which the highest counts.

Runs on the host; quick to import, for read-only verbs.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from remote.shared.errors import UsageError
from remote.shared.messages.envelope import first_problem
from remote.shared.messages.extract import Assignment
from remote.shared.paths import ASSIGNMENT_FILE, RunPaths


def newest_epoch(paths: RunPaths) -> int | None:
    """Return the highest epoch that this host was given, or None."""
    if not paths.assignments.is_dir():
        return None
    epochs = [int(entry.name) for entry in paths.assignments.iterdir() if entry.name.isdecimal()]
    return max(epochs, default=None)


def newest(paths: RunPaths) -> Path:
    """Return the folder of the highest epoch; raises UsageError if the host was given no assignment."""
    epoch = newest_epoch(paths)
    if epoch is None:
        raise UsageError(
            f"The run {paths.root.name!r} has no assignment on this host.",
            remedy="`inv extract` gives every host its assignment.",
        )
    return paths.assignment(epoch)


def read_description(directory: Path) -> Assignment:
    """Read the assignment without its tokens."""
    path = directory / ASSIGNMENT_FILE
    try:
        return Assignment.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"There is no assignment in {directory}: {error.strerror}.",
            remedy="`inv extract` sends the assignment; other launchers name its folder with --assignment.",
        ) from error
    except ValidationError as error:
        raise UsageError(
            f"{path} is not a valid assignment ({first_problem(error)}).",
            remedy="`inv extract` replaces a damaged assignment; other launchers name its folder with --assignment.",
        ) from error
