"""A second user of the machine, for tests: a process that has given up root for good. Only root can start it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

UID = 54_321
"""An arbitrary user id, because the kernel needs no entry in /etc/passwd."""
VICTIM = 54_322

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


def start_as(code: str, *arguments: str, uid: int = UID, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start `code` as that user, with its arguments in `sys.argv[1:]`.

    `os`, `socket`, `sys` and `time` are already imported, because the user may not be able to read Python's library.
    Standard input stays open until the caller closes it.
    """
    fall = f"import os, socket, sys, time; os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
    return subprocess.Popen(
        [sys.executable, "-c", fall + code, *arguments],
        env={**os.environ, **(env or {})},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_as(code: str, *arguments: str, uid: int = UID) -> str:
    """Run `code` as that user until it ends; return its output."""
    process = start_as(code, *arguments, uid=uid)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return said


def open_to_all(folder: Path) -> Path:
    """Make a folder like /tmp, in which every user may create files, and which every user can reach; return it."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)
    for parent in folder.parents:
        if parent != Path("/") and parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o001)
    return folder
