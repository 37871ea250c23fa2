"""The operating system's facts: file systems, limits, sshd, tools. Host side, read-only."""

from __future__ import annotations

import platform
import resource
import shutil
import subprocess
from pathlib import Path

import psutil

from remote.messages.facts import SpaceFact

TOOL_SECONDS = 10.0
SSHD_CONFIGS = (Path("/etc/ssh/sshd_config"), Path("/etc/ssh/sshd_config.d"))


def space(path: Path) -> SpaceFact:
    """The file system that `path` is, or would be, on."""
    existing = path.expanduser()
    while not existing.exists():
        existing = existing.parent
    usage = shutil.disk_usage(existing)
    return SpaceFact(path=str(path), kind=_kind(existing), total_bytes=usage.total, free_bytes=usage.free)


def _kind(path: Path) -> str:
    """Type of the file system, by the longest mount point above `path`."""
    resolved = str(path.resolve())
    mounts = [mount for mount in psutil.disk_partitions(all=True) if _is_above(mount.mountpoint, resolved)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""


def _is_above(mount: str, path: str) -> bool:
    return path == mount or path.startswith(mount.rstrip("/") + "/")


def in_container() -> bool:
    """Whether this looks like the inside of a container: process ids of others then mean nothing here."""
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return True
    try:
        text = Path("/proc/1/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(word in text for word in ("docker", "kubepods", "containerd", "lxc"))


def cpu_has_aes() -> bool:
    """Whether AES-GCM is cheap here: it decides the cipher of bulk transfers."""
    if platform.machine() in {"aarch64", "arm64"}:
        return True
    try:
        return " aes " in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def open_files() -> int:
    """Soft limit of file descriptors; -1 where there is none."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft


def max_startups() -> str:
    """sshd's `MaxStartups` as configured; OpenSSH's default where it is not, empty where nothing can be read."""
    try:
        files = [SSHD_CONFIGS[0], *sorted(SSHD_CONFIGS[1].glob("*.conf"))]
        lines = [line for path in files for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return ""
    values = [line.split()[1] for line in lines if line.strip().lower().startswith("maxstartups ")]
    return values[0] if values else "10:30:100"


def tools() -> dict[str, str]:
    """First line that each tool says of its version; a missing tool is left out."""
    found = {}
    for name, arguments in (("rsync", ["--version"]), ("ssh", ["-V"])):
        try:
            answer = subprocess.run(
                [name, *arguments],
                capture_output=True,
                text=True,
                timeout=TOOL_SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        said = (answer.stdout or answer.stderr).strip().splitlines()
        found[name] = said[0] if said else ""
    return found
