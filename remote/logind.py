"""What systemd-logind does to a user's processes and shared memory at the last logout. Runs on the host; read-only.

logind.conf(5): KillUserProcesses ends what a session started, RemoveIPC removes the user's files in /dev/shm, neither
for root; `loginctl enable-linger` keeps the user's own manager, and with it the shared memory, without a login.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

from remote.shared.messages.facts import LoginFacts

BOOTED = Path("/run/systemd/system")
"""This folder exists exactly if systemd is the init system: sd_booted(3)."""
LINGER = Path("/var/lib/systemd/linger")
RUNTIME = Path("/run/user")
CONFIGURATIONS = tuple(Path(folder) / "systemd" for folder in ("/etc", "/run", "/usr/local/lib", "/usr/lib"))
_SECONDS = 10.0
_YES = {"yes", "true", "1", "on"}


def login_facts() -> LoginFacts | None:
    """Return logind's settings for this user; None without systemd, as in most containers."""
    if not BOOTED.is_dir():
        return None
    told = _asked() or _read()
    return LoginFacts(
        kill_user_processes=told.get("KillUserProcesses", "no").lower() in _YES,
        remove_ipc=told.get("RemoveIPC", "yes").lower() in _YES,
        lingers=lingers(),
    )


def lingers() -> bool:
    """Return whether this user's manager stays after the last logout."""
    return BOOTED.is_dir() and (LINGER / _user()).exists() and runtime_directory().is_dir()


def runtime_directory() -> Path:
    """Return the folder in which the user's manager listens."""
    return RUNTIME / str(user_id())


def user_id() -> int:
    """Return the id of the user whose processes have to outlive the login."""
    return os.geteuid()


def _user() -> str:
    try:
        return pwd.getpwuid(user_id()).pw_name
    except KeyError:
        return str(user_id())


def _asked() -> dict[str, str]:
    """Return logind's own answer: `loginctl show-session` without a session prints the manager's properties."""
    argv = ["loginctl", "show-session", "--property=KillUserProcesses", "--property=RemoveIPC"]
    try:
        answer = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse(answer.stdout) if answer.returncode == 0 else {}


def _read() -> dict[str, str]:
    """Return the settings in logind.conf and its drop-ins, in order of their names, if logind does not answer."""
    main = next((path for folder in CONFIGURATIONS if (path := folder / "logind.conf").is_file()), None)
    drop_ins: dict[str, Path] = {}
    for folder in reversed(CONFIGURATIONS):
        drop_ins |= {path.name: path for path in (folder / "logind.conf.d").glob("*.conf")}
    settings: dict[str, str] = {}
    for path in ([main] if main else []) + [drop_ins[name] for name in sorted(drop_ins)]:
        try:
            settings |= parse(path.read_text(errors="replace"))
        except OSError:
            continue
    return settings


def parse(text: str) -> dict[str, str]:
    """Return the `Key=value` lines without comments and without empty values."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and line.lstrip()[:1] not in ("#", ";"))
    return {key.strip(): value.strip() for key, _, value in pairs if value.strip()}
