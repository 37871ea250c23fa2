"""Which processes of this host hold what a server needs (a port, device nodes, a dump directory), and whose they are.

Runs on the host, called by preflight, `serve`, `stop`, `free` and `facts`. Read-only: it names processes but ends none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from remote.shared.messages.server import ProcessRow
from remote.shared.processes import mark_of

COMMAND_LIMIT = 160
FIRST_PERSON, LAST_PERSON = 1000, 60_000_000
"""User ids of people; smaller ids belong to the system. Directories such as LDAP give ids far above 60,000."""
NOBODY = 65_534


@dataclass
class Holder:
    """A process, and the reasons why it is shown."""

    process: psutil.Process
    holds: list[str] = field(default_factory=list)
    owner: str = ""
    """The owner as a record tells it; if empty, it is read from the process's environment."""

    def describe(self) -> str:
        """Return `pid 4711 (root, for 3 h: python -m …)`."""
        row = self.row({})
        return f"pid {row.pid} ({row.user}, for {age(row.age_seconds)}: {row.command})"

    def row(self, charged: dict[int, int]) -> ProcessRow:
        """Return the process as a row for a person; `charged` is GPU memory by pid."""
        with self.process.oneshot():
            return ProcessRow(
                pid=self.process.pid,
                user=_user(self.process),
                age_seconds=max(0.0, time.time() - self.process.create_time()),
                gpu_bytes=charged.get(self.process.pid),
                command=command_of(self.process),
                holds=list(dict.fromkeys(self.holds)),
                owner=self.owner or owner_of(self.process),
            )


def port_holders(port: int) -> list[Holder]:
    """Return the processes that listen on `port` on any address of this host."""
    pids = {
        connection.pid
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
    }
    return [
        Holder(process, [f"port {port}"])
        for process in _living(pid for pid in sorted(pids - {None}, key=str) if pid is not None)
    ]


def other_people() -> list[str]:
    """Return the names (or ids) of the people, except root and this user, who have a process on this host now.

    What SGLang leaves open to other users decides which settings `serve` refuses.
    """
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        try:
            user = process.uids().real
            if FIRST_PERSON <= user < LAST_PERSON and user not in (NOBODY, os.geteuid()) and user not in found:
                found[user] = str(process.username())
        except psutil.Error:
            continue
    return sorted(found.values())


def command_of(process: psutil.Process) -> str:
    """Return the beginning of the process's command line, which tells what it is."""
    try:
        text = " ".join(" ".join(process.cmdline()).split()) or process.name()
    except (psutil.AccessDenied, psutil.ZombieProcess):
        text = process.name()
    except psutil.NoSuchProcess:
        return "(ended)"
    return text if len(text) <= COMMAND_LIMIT else f"{text[: COMMAND_LIMIT - 1]}…"


def owner_of(process: psutil.Process) -> str:
    """Return `NAME in WORKDIR` if the process belongs to a Roost server of any workdir, else ""."""
    return owner(mark_of(process))


def owner(mark: str) -> str:
    """Return the server that a mark names, as `NAME in WORKDIR`."""
    folder = Path(mark.partition("#")[0])
    return f"{folder.name} in {folder.parent.parent}" if folder.name else ""


def age(seconds: float) -> str:
    """Return the time as `42 s`, `3 min`, `5 h` or `12 d`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _user(process: psutil.Process) -> str:
    try:
        return process.username()
    except (psutil.Error, KeyError):
        return "?"


def _living(pids: Iterator[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        try:
            yield psutil.Process(pid)
        except psutil.NoSuchProcess:
            continue
