"""Keeps the code of jobs that may wait in a queue for days. Runs on the login host."""

from __future__ import annotations

import shutil
from pathlib import Path

from remote.shared.files import make_directory


def keep_payload(source: Path, target: Path) -> None:
    """Copy Roost's code to a folder of the job's own, which no deploy and no `inv clean` removes."""
    if target.exists():
        return
    aside = make_directory(target.parent) / f".aside-{target.name}"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(source / "remote", aside / "remote", ignore=shutil.ignore_patterns("__pycache__"))
    aside.rename(target)
