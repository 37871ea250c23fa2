"""The same host for OpenSSH's own programs (bulk data): a private configuration file for `ssh -F`.

A file instead of arguments, because rsync's `-e` is split at spaces and paths may hold anything.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from hosts.inventory.model import Host
from hosts.transport.ssh import known_hosts_file

AES_CIPHER = "aes128-gcm@openssh.com"
"""About twice as fast as chacha20 where the CPU has AES instructions; measured by `benchmarks/pull.py`."""


def ssh_command(host: Host, folder: Path) -> list[str]:
    """Return `ssh -F FILE NAME`, whose FILE is written to `folder` (0600): append the remote command, quoted."""
    path = folder / f"ssh_config-{host.name}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(ssh_config(host))
    return ["ssh", "-F", str(path), host.address or host.name]


def ssh_config(host: Host) -> str:
    """The inventory's settings first (the first value obtained wins), then the user's own configuration."""
    timeout = int(host.connect_timeout)
    lines = [
        f"Host {_quoted(host.address or host.name)}",
        *([f"User {_quoted(host.user)}"] if host.user else []),
        *([f"Port {host.ssh_port}"] if host.ssh_port else []),
        *([f"IdentityFile {_path(host.identity_file)}", "IdentitiesOnly yes"] if host.identity_file else []),
        "Match all",
        f"UserKnownHostsFile {_path(str(known_hosts_file(host)))}",
        "StrictHostKeyChecking yes",
        "BatchMode yes",
        f"ConnectTimeout {timeout}",
        "ServerAliveInterval 15",
        "ServerAliveCountMax 3",
        "ControlMaster no",
        "ControlPath none",
        "Compression no",
        *([f"Ciphers ^{AES_CIPHER}"] if cpu_has_aes() else []),
        f"Include {_path(host.ssh_config)}",
    ]
    return "\n".join(lines) + "\n"


def cpu_has_aes() -> bool:
    """Whether this machine's CPU has AES instructions (Apple silicon and recent Arm do)."""
    if platform.machine() in {"arm64", "aarch64"}:
        return True
    try:
        return " aes " in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True


def _path(path: str) -> str:
    return _quoted(str(Path(path).expanduser()))


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
