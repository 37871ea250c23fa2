"""Runs on the host for `remote.facts`: runs other programs with a deadline. Changes nothing."""

from __future__ import annotations

import re
import subprocess

from remote.shared.messages.facts import ToolFacts

SECONDS = 20.0
"""nvidia-smi can hang for ever if the driver is broken."""


def say(*argv: str) -> str:
    """Return a program's stdout and stderr; empty if it is missing, fails or hangs."""
    try:
        answer = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode(errors="replace") if answer.returncode == 0 else ""


def tools() -> ToolFacts:
    """Return the versions of the programs that a pull can use."""
    rsync = re.search(r"version\s+v?(\S+)", say("rsync", "--version"))
    ssh = re.search(r"OpenSSH_([^\s,]+)", say("ssh", "-V"))
    return ToolFacts(rsync=rsync.group(1) if rsync else "", ssh=ssh.group(1) if ssh else "")
