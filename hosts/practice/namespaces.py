"""Network, mount and PID namespaces for practice and tests. All their processes end with the first process inside.

Called by the fault suites, the practice clusters and their demos. Needs root on Linux with util-linux and iproute2.
Changes no interface, mount or process outside, because the caller first becomes process 1 of new namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

INSIDE = "ROOST_IN_NAMESPACES"
UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]


def enter(module: str, arguments: list[str]) -> str:
    """Run `python -m module` again inside namespaces; return why this is impossible here, or "" once inside.

    The process outside never returns: it waits for the process inside. If the process outside is killed, all processes
    inside end too.
    """
    if os.environ.get(INSIDE):
        run("ip", "link", "set", "lo", "up")
        return ""
    why = obstacle()
    if not why:
        environ = {**os.environ, INSIDE: "1"}
        again = [*UNSHARE, sys.executable, "-m", module, *arguments]
        sys.exit(ended(subprocess.Popen(bound(again), env=environ)))
    return why


def bound(argv: list[str]) -> list[str]:
    """Return the command so that the kernel kills it when its parent ends; unchanged if there is no setpriv."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *argv] if shutil.which("setpriv") else argv


def ended(child: subprocess.Popen[bytes]) -> int:
    """Return a child's exit status. After a Ctrl-C keep waiting, because the child gets it too and cleans up."""
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


def obstacle() -> str:
    """Return why this machine allows no namespaces; "" if it allows them."""
    if sys.platform != "linux":
        return f"only Linux has network namespaces, and this is {sys.platform}"
    missing = [name for name in ("unshare", "nsenter", "ip", "mount") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is missing"
    probe = [*UNSHARE, "sh", "-c", "mount -t tmpfs tmpfs /mnt && ip link add roost0 type veth peer name roost1"]
    tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"they were refused: {tried.stderr.strip() or tried.returncode}"


def run(*argv: str) -> None:
    """Run a program of the system; raise CalledProcessError with its output if it fails."""
    subprocess.run(argv, check=True, capture_output=True, text=True)


def link(pid: int, near: str, near_address: str, far_address: str) -> None:
    """Connect `near` here with `eth0` in the namespace of process `pid`; both get their addresses (CIDR)."""
    run("ip", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    run("ip", "address", "add", near_address, "dev", near)
    run("ip", "link", "set", near, "up")
    inside(pid, "ip", "address", "add", far_address, "dev", "eth0")
    inside(pid, "ip", "link", "set", "eth0", "up")


def join(pid: int, bridge: str, name: str, address: str) -> None:
    """Connect the namespace of process `pid` to a bridge here; its `eth0` gets the address (CIDR)."""
    run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    run("ip", "link", "set", name, "master", bridge, "up")
    inside(pid, "ip", "link", "set", "lo", "up")
    inside(pid, "ip", "address", "add", address, "dev", "eth0")
    inside(pid, "ip", "link", "set", "eth0", "up")


def inside(pid: int, *argv: str) -> None:
    """Run a program in the network of process `pid`."""
    within(pid, ("net",), *argv)


def within(pid: int, kinds: tuple[str, ...], *argv: str) -> None:
    """Run a program in the namespaces of process `pid` of these kinds: `net`, `mount`, `pid`."""
    run("nsenter", "--target", str(pid), *(f"--{kind}" for kind in kinds), "--", *argv)
