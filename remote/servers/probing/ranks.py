"""Notices a dead rank before SGLang's own watchdog, which takes 5 s and more: a rank that dies in NCCL stalls all.

Runs inside the supervisor. Reads the process table; changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil

from remote.servers.probing.sglang_process import TITLE
from remote.shared.processes import is_zombie

POLL_SECONDS = 0.5
REFRESH_POLLS = 10
"""Reading the whole process table is expensive on a big box, so most polls look only at the known ranks."""
OWN_END_SECONDS = 1.0
"""How long SGLang gets to end by itself and to log the reason, after the death of a rank."""


class RankWatch:
    """The ranks below one server's leader."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._titles: dict[psutil.Process, str] = {}

    async def death(self) -> str:
        """Wait for the death of a rank; returns a sentence on the first one, a second later."""
        polls = 0
        while True:
            if not self._titles or polls % REFRESH_POLLS == 0:
                self._refresh()
            polls += 1
            dead = next((rank for rank in self._titles if is_zombie(rank)), None)
            if dead is not None:
                how = _how_it_ended(dead.pid)
                await asyncio.sleep(OWN_END_SECONDS)
                return f"{self._titles[dead]} (pid {dead.pid}) {how}, and the server did not end by itself"
            await asyncio.sleep(POLL_SECONDS)

    def _refresh(self) -> None:
        try:
            for child in psutil.Process(self._leader).children(recursive=True):
                if child.name().startswith(TITLE) and not _is_fork(child):
                    self._titles.setdefault(child, _title(child))
        except psutil.Error:
            return


def _is_fork(child: psutil.Process) -> bool:
    """Return whether the process is a rank's own fork: it has the rank's title until it runs another program or ends.

    SGLang starts every rank as a new program, below a process that has no title or another one.
    """
    parent = child.parent()
    return parent is not None and parent.name() == child.name()


def _title(rank: psutil.Process) -> str:
    """Return the rank's title with its number (`sglang::scheduler_TP3`); a zombie only has 15 characters of it."""
    try:
        return next(iter(rank.cmdline()), rank.name()).split()[0]
    except psutil.ZombieProcess:
        return rank.name()


def _how_it_ended(pid: int) -> str:
    """Return how a zombie ended, from the last field of its stat, which the kernel hides from other users."""
    try:
        status = int(Path(f"/proc/{pid}/stat").read_text().rsplit(maxsplit=1)[1])
    except (OSError, ValueError, IndexError):
        return "died"
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with exit code {os.WEXITSTATUS(status)}" if status else "ended"
