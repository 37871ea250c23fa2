"""Starts a program that survives this verb, the SSH connection and the laptop: supervisors and extractors.

Runs on the host. A session of its own and all three streams redirected: with less, sshd waits for the child, or a
closing terminal kills it. systemd-logind may still kill whatever a login started once its last session ends
(KillUserProcesses); where the user lingers, the program is started in a scope of the user's own manager, which stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from remote import logind
from remote.shared.files import open_own

TRIAL_SECONDS = 10.0
"""A user manager that does not start a scope within this time is not used."""


def start(argv: Sequence[str], *, cwd: Path, log: Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start `argv` detached, its output appended to `log` (0600); the process's pid is the program's own."""
    scope, environment = _scope()
    descriptor = open_own(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        return subprocess.Popen(
            [*scope, *argv],
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=stdin,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def _scope() -> tuple[list[str], dict[str, str]]:
    """Return the words before a command with which it outlives the login, and their environment.

    `systemd-run --scope` becomes the command, so that pid and session are the command's. A manager that does not linger
    ends with the last login and would take the program with it: it is not used.
    """
    program = shutil.which("systemd-run")
    if program is None or logind.user_id() == 0 or not logind.lingers():
        return [], {}
    command = [program, "--user", "--scope", "--quiet", "--collect", "--"]
    environment = {"XDG_RUNTIME_DIR": str(logind.runtime_directory())}
    try:
        trial = subprocess.run(
            [*command, "true"],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRIAL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return [], {}
    return (command, environment) if trial.returncode == 0 else ([], {})
