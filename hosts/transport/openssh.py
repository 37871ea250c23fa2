"""The configuration file that every OpenSSH program of Roost runs with: control connections, bulk data, `ssh -G`.

The settings are in a file because the `ssh` that OpenSSH starts for a ProxyJump gets the file, but none of the options.
Roost's own lines come first, so they win. The person's configuration is included after them.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

from hosts.inventory.model import DEFAULT_SSH_CONFIG, Host

AES_CIPHER = "aes128-gcm@openssh.com"
"""About twice as fast as chacha20 where the CPU has AES instructions; measured by `benchmarks/pull.py`."""
SYSTEM_CONFIG = "/etc/ssh/ssh_config"

# Only what a program needs: no forwarding, no terminal, no local or remote commands of the person's configuration.
HARDENING = (
    "ForwardAgent no",
    "ForwardX11 no",
    "ClearAllForwardings yes",
    "Tunnel no",
    "PermitLocalCommand no",
    "RemoteCommand none",
    "RequestTTY no",
    "StrictHostKeyChecking yes",
    "UpdateHostKeys no",
    "BatchMode yes",
    "ControlMaster no",
    "ControlPath none",
    "Compression no",
    "VisualHostKey no",
    "LogLevel ERROR",
    "ServerAliveInterval 15",
    "ServerAliveCountMax 3",
)
_SINCE_8_7 = ("SessionType default", "StdinNull no", "ForkAfterAuthentication no")


def ssh_command(host: Host, folder: Path) -> list[str]:
    """Return `ssh -F FILE … NAME`, to which the caller appends the quoted command. FILE is written to `folder` (0600).

    `folder` must have a plain name: OpenSSH puts it unquoted into the command that reaches a jump host.
    """
    return ["ssh", *ssh_arguments(host, write_config(host, folder)), destination(host)]


def ssh_arguments(host: Host, config: Path) -> list[str]:
    """Return the inventory's settings for the host itself as options of `ssh`, `scp` and `sftp`, without jump hosts."""
    return [
        *("-F", str(config)),
        *login_options(host.user, host.ssh_port),
        *(["-i", _expanded(host.identity_file), "-oIdentitiesOnly=yes"] if host.identity_file else []),
    ]


def login_options(user: str | None, port: int | str | None) -> list[str]:
    """Return the user and port, if given, as `-oUser=` and `-oPort=`."""
    return [*([f"-oUser={_quoted(user)}"] if user else []), *([f"-oPort={port}"] if port else [])]


def destination(host: Host) -> str:
    """Return the address or alias that follows `ssh` on the command line."""
    return host.address or host.name


def write_config(host: Host, folder: Path) -> Path:
    """Write the configuration for `host` to `folder` (0600) and return its path."""
    path = folder / f"ssh_config-{host.name}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(ssh_config(host))
    return path


def ssh_config(host: Host) -> str:
    """Return Roost's own lines, then the person's configuration; the first value of a keyword counts.

    The system's configuration is read after the person's own, as by `ssh`, but not after a file that the inventory
    names, as by `ssh -F`.
    """
    system = [f"Include {SYSTEM_CONFIG}"] if host.ssh_config == DEFAULT_SSH_CONFIG else []
    lines = [
        *HARDENING,
        *(_SINCE_8_7 if openssh_version() >= (8, 7) else ()),
        *([f"UserKnownHostsFile {_path(host.known_hosts)}"] if host.known_hosts else []),
        f"ConnectTimeout {max(1, round(host.connect_timeout))}",
        *([f"Ciphers ^{AES_CIPHER}"] if cpu_has_aes() and openssh_version() >= (8, 1) else []),
        f"Include {_path(host.ssh_config)}",
        *system,
    ]
    return "\n".join(["Match all", *lines]) + "\n"


@cache
def openssh_version() -> tuple[int, int]:
    """Return this machine's OpenSSH version, such as (9, 2); (0, 0) if there is none."""
    try:
        said = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return 0, 0
    found = re.search(r"OpenSSH_\D*(\d+)\.(\d+)", said.stderr + said.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@cache
def cpu_has_aes() -> bool:
    """Return whether this machine's CPU has AES instructions (Apple silicon and recent Arm do)."""
    if platform.machine() in {"arm64", "aarch64"}:
        return True
    try:
        return " aes " in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True


def _expanded(path: str) -> str:
    return str(Path(path).expanduser())


def _path(path: str) -> str:
    """Return a file name as ssh_config(5) wants it: quoted, and with `%` escaped."""
    return _quoted(_expanded(path).replace("%", "%%"))


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
