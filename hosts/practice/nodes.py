"""Practice nodes, connected by a bridge. Each has its own network, loopback, `/dev/shm` and mount table.

Called by the practice clusters, inside namespaces (`namespaces.enter`). The nodes share this machine's disks and its
process table. They end with the namespaces.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hosts.practice import namespaces

NETWORK = "10.77.0"
"""The bridge's network, which only these namespaces see. This side has the address .1, and the nodes begin at .10."""
HERE = f"{NETWORK}.1"
WAIT_SECONDS = 30.0


class Nodes:
    """The nodes of one practice cluster."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._holders: dict[str, int] = {}
        """The process that keeps each node's namespaces."""

    def start(self) -> None:
        """Make the bridge and the nodes."""
        namespaces.run("ip", "link", "set", "lo", "up")
        namespaces.run("ip", "link", "add", "nodes", "type", "bridge")
        namespaces.run("ip", "address", "add", f"{HERE}/24", "dev", "nodes")
        namespaces.run("ip", "link", "set", "nodes", "up")
        for name in self.names:
            self._holders[name] = _holder()
            namespaces.join(self._holders[name], "nodes", name, f"{self.address(name)}/24")
            self.on(name, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm")  # noqa: S108

    def address(self, name: str) -> str:
        """Return a node's address on the bridge."""
        return f"{NETWORK}.{10 + self.names.index(name)}"

    def on(self, name: str, *argv: str) -> None:
        """Run a program of the system in a node's network and mounts; raise CalledProcessError if it fails."""
        namespaces.within(self._holders[name], ("net", "mount"), *argv)

    def entering(self, name: str) -> list[str]:
        """Return the words to put before a command, so that it runs in a node's network and mounts."""
        return ["nsenter", "--target", str(self._holders[name]), "--net", "--mount", "--"]


def until(condition: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Wait until a condition holds; raise AssertionError if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(0.05)


def _holder() -> int:
    holder = subprocess.Popen(["unshare", "--net", "--mount", "--", "sleep", "infinity"])
    own = _mounts_of(os.getpid())
    until(lambda: _mounts_of(holder.pid) != own)
    return holder.pid


def _mounts_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/mnt").readlink())
