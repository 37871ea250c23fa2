"""Another user of the same machine, for tests that need one: a process that has given up root for good. Root only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

UID = 54_321
"""Nobody's in particular: the kernel asks for no entry in /etc/passwd."""
VICTIM = 54_322

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as two users, which takes root")


def start_as(code: str, *arguments: str, uid: int = UID, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start `code` as that user, who may be able to read no library: `os`, `socket`, `sys` and `time` are imported.

    Its arguments are in `sys.argv[1:]`, and its standard input stays open until the caller closes it.
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
    """Run `code` as that user to its end; returns what it printed."""
    process = start_as(code, *arguments, uid=uid)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return said


def open_to_all(folder: Path) -> Path:
    """A folder as /tmp is: anybody may create in it, and every folder above it lets anybody through."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)
    for parent in folder.parents:
        if parent != Path("/") and parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o001)
    return folder
