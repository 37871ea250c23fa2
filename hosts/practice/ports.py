"""Reserves TCP ports for practice hosts and tests. Laptop's side; tests inside `.engine` import it too.

A free port that was found by binding port 0 may be taken by the next outgoing connection. The ports here are outside of
the range from which systems choose ports, and a lock file keeps other processes of Roost from choosing them.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

from hosts.errors import HostError

ADDRESS = "127.0.0.1"
BLOCK = 4
"""Ports are handed out in blocks, so that a server's neighbouring ports (a rendezvous, its link) are reserved too."""
BLOCKS = range(20_000, 30_000, BLOCK)
"""First port of each block. Linux chooses outgoing ports from 32768 on."""
ATTEMPTS = 1000

_reserved: list[FileLock] = []
"""Locks of reserved blocks. They are held until this process ends, because a server may be restarted on its port."""


def free_port() -> int:
    """Return a TCP port that nothing listens on, reserved like those of `free_ports`."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return up to 4 consecutive TCP ports of loopback, reserved until this process ends.

    A block counts as taken while any of its ports is in use. A practice host's sshd listens on the block's first port,
    so the port of the host's server stays reserved before the server starts. Raises HostError if no block is free.
    """
    assert 1 <= count <= BLOCK
    folder = _lock_folder()
    for _ in range(ATTEMPTS):
        first = secrets.choice(BLOCKS)
        lock = FileLock(folder / str(first))
        try:
            lock.acquire(blocking=False)
        except Timeout:
            continue
        if all(_can_be_bound(port) for port in range(first, first + BLOCK)):
            _reserved.append(lock)
            return list(range(first, first + count))
        lock.release()
    raise HostError(f"Ports {BLOCKS.start} to {BLOCKS.stop - 1} of {ADDRESS} are all in use.")


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((ADDRESS, port))
        except OSError:
            return False
    return True


def _lock_folder() -> Path:
    """Return the folder of this user's lock files; raises HostError if another user made a folder of that name."""
    folder = Path(tempfile.gettempdir(), f"roost-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise HostError(
            f"{folder} belongs to another user.", remedy="Remove that folder, or set TMPDIR to a folder of your own."
        )
    return folder
