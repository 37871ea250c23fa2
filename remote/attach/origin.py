"""Finds out whether a model file is the one that SGLang was installed with. Host side, read-only.

A wheel's RECORD has every file's digest; a git checkout's HEAD has every file. If neither has the file, the original is
unknown, and the patch does not change the file.
"""

from __future__ import annotations

import base64
import csv
import difflib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from remote.attach.block import sha256
from remote.shared.messages.attach import Installation

GIT_SECONDS = 30.0
DIFF_LINES = 60
"""The most lines of a diff in a message."""


@dataclass(frozen=True)
class Origin:
    """The original of a file, according to the installation."""

    digest: str = ""
    """sha256 of the original; empty if unknown."""
    content: bytes | None = None
    """The original itself, if it is available (git's HEAD, a copy kept by an earlier attach)."""
    source: str = ""
    """The source of this, as in a sentence: `the wheel's RECORD`."""


def origin(file: Path, installation: Installation) -> Origin:
    """Return the original of `file`; an empty Origin if it is unknown."""
    stated = _recorded(file, installation)
    if stated:
        return Origin(digest=stated, source="the wheel's RECORD")
    head = _committed(file)
    if head is not None:
        return Origin(digest=sha256(head), content=head, source="git's HEAD")
    return Origin()


def _recorded(file: Path, installation: Installation) -> str:
    """Return the sha256 in RECORD as hex; empty if the file is not listed."""
    if installation.metadata is None:
        return ""
    record = Path(installation.metadata) / "RECORD"
    name = (Path("sglang") / file.relative_to(installation.package)).as_posix()
    for path, digest in _rows(record, name):
        if path == name and digest.startswith("sha256="):
            text = digest.removeprefix("sha256=")
            return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
    return ""


def _rows(record: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield path and digest of the lines that contain `name`: parsing all 9,000 for each file would take a second."""
    try:
        with record.open(newline="", encoding="utf-8") as lines:
            near = (line for line in lines if name in line)
            yield from ((row[0], row[1]) for row in csv.reader(near) if len(row) >= 2)
    except OSError:
        return


def _committed(file: Path) -> bytes | None:
    """Return the file in git's HEAD; None outside a checkout, or if git does not track it."""
    try:
        shown = subprocess.run(
            ["git", "-C", str(file.parent), "show", f"HEAD:./{file.name}"],
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return shown.stdout if shown.returncode == 0 else None


def difference(original: bytes, found: bytes, name: str) -> str:
    """Return a unified diff, cut after DIFF_LINES lines."""
    lines = list(
        difflib.unified_diff(
            original.decode(errors="replace").splitlines(),
            found.decode(errors="replace").splitlines(),
            f"{name} as installed",
            f"{name} as found",
            n=1,
            lineterm="",
        )
    )
    cut = [f"… {len(lines) - DIFF_LINES} more lines"] if len(lines) > DIFF_LINES else []
    return "\n".join(lines[:DIFF_LINES] + cut)
