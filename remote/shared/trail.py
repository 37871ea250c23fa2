"""An append-only, bounded file of who did what. Both sides: `.roost/trail.jsonl` here, `<workdir>/trail.jsonl` there.

A line is written with one `write` under the kernel's lock, so that commands that run at once never mix their lines. At
a megabyte the file becomes `trail.1.jsonl` and a new one begins: some ten thousand commands stay readable. Nothing
fails because a trail cannot be written; the caller is told and says so.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from remote.shared.errors import ForeignFileError, HostError
from remote.shared.files import make_directory, open_own, read_own
from remote.shared.messages.envelope import Typed
from remote.shared.messages.trail import Ending, Step, TrailSteps

LIMIT_BYTES = 1 << 20
LONGEST_LINE = 4096
"""The rest of a longer command is cut off, because a line is written by a single `write`."""


class Trail:
    """One trail file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = path.with_name(f"{path.stem}.1{path.suffix}")

    def append(self, step: Step) -> None:
        """Write one line; raises OSError if the file cannot be written."""
        line = step.model_dump_json(exclude_defaults=True).encode()
        if len(line) > LONGEST_LINE:
            short = step.typed.model_copy(update={"words": step.typed.words[: LONGEST_LINE // 4] + " …"})
            line = step.model_copy(update={"typed": short, "hosts": step.hosts[:32]}).model_dump_json().encode()
        make_directory(self._path.parent)
        with self._locked() as descriptor:
            os.write(descriptor, line + b"\n")

    def read(self, since: float = 0.0) -> TrailSteps:
        """Return the lines from `since` (Unix time) on; a line that cannot be read is counted.

        Raises HostError if the file is there and cannot be read.
        """
        steps, damaged = [], 0
        for line in [*_lines(self._before), *_lines(self._path)]:
            try:
                steps.append(Step.model_validate_json(line))
            except ValidationError:
                damaged += 1
        return TrailSteps(steps=[step for step in steps if step.at >= since], damaged=damaged)

    def of(self, command: str) -> list[Step]:
        """Return the lines of one command, by its id; none if the file cannot be read."""
        found = []
        with suppress(HostError, ValidationError):
            for line in _lines(self._path):
                if command.encode() in line:
                    found.append(Step.model_validate_json(line))
        return found

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Yield the current file, open to append and locked. A full file is put aside first."""
        while True:
            descriptor = open_own(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if self._is_current(descriptor):
                    if os.fstat(descriptor).st_size < LIMIT_BYTES:
                        yield descriptor
                        return
                    self._path.replace(self._before)
            finally:
                os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        """Return whether no other process has put this file aside meanwhile."""
        with suppress(FileNotFoundError):
            return os.path.samestat(self._path.lstat(), os.fstat(descriptor))
        return False


def _lines(path: Path) -> list[bytes]:
    try:
        return read_own(path).splitlines()
    except FileNotFoundError:
        return []
    except ForeignFileError:
        raise
    except OSError as error:
        raise HostError(f"The trail {path} could not be read: {error.strerror}.") from error


class Command:
    """Writes one command's two lines to a trail. An error of the disk is kept in `lost`."""

    def __init__(self, trail: Trail, typed: Typed, operator: str, **more: object) -> None:
        self._trail = trail
        self._step = Step.model_validate({"at": time.time(), "typed": typed, "operator": operator, **more})
        self._began = time.monotonic()
        self.lost = ""
        self._append(self._step)

    def end(self, ending: Ending) -> None:
        """Write the command's ending and its seconds."""
        seconds = round(time.monotonic() - self._began, 3)
        self._append(self._step.model_copy(update={"at": time.time(), "ending": ending, "seconds": seconds}))

    def _append(self, step: Step) -> None:
        try:
            self._trail.append(step)
        except OSError as error:
            self.lost = f"The trail of who did what could not be written: {error.strerror or error}."
