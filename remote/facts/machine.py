"""Runs on the host for `remote.facts`: the machine, its file systems and its limits. Read-only."""

from __future__ import annotations

import getpass
import os
import platform
import resource
import shutil
import time
from pathlib import Path

import psutil

from remote.shared.messages.facts import LimitFacts, MachineFacts, SpaceFacts

SSHD_CONFIG = Path("/etc/ssh/sshd_config")
SSHD_DEFAULT_STARTUPS = "10:30:100"
SSHD_DEFAULT_SESSIONS = 10


def machine_facts() -> MachineFacts:
    """Return the login, the machine and its current time."""
    memory = psutil.virtual_memory()
    model, flags = _cpu()
    return MachineFacts(
        hostname=platform.node(),
        kernel=f"{platform.system()} {platform.release()}",
        user=_user(),
        root=os.geteuid() == 0,
        container=container(),
        cpu=model,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cpu_aes="aes" in flags or platform.machine() in {"arm64"},
        memory_bytes=memory.total,
        memory_available_bytes=memory.available,
        time_at=time.time(),
        zone=time.strftime("%z"),
    )


def _user() -> str:
    """Return the login's name, or its uid if no passwd entry has it, as is common in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def container() -> str:
    """Return the kind of container, if it can be recognised."""
    if os.environ.get("KUBERNETES_SERVICE_HOST") or Path("/var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    return os.environ.get("container", "")  # noqa: SIM112 - systemd-nspawn and LXC set it in lower case


def _cpu() -> tuple[str, set[str]]:
    """Return model name and flags of the first core, if the kernel says."""
    model, flags = platform.processor(), set[str]()
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return model, flags
    for line in text.split("\n\n", maxsplit=1)[0].splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() in {"flags", "Features"}:
            flags = set(value.split())
    return model, flags


def space_facts(folder: Path) -> SpaceFacts:
    """Describe the file system that `folder` is on, or would be created on."""
    # For a folder below an unreadable one, os.path.isdir returns False; Path.is_dir raises.
    existing = next(part for part in (folder, *folder.parents) if os.path.isdir(part))  # noqa: PTH112
    usage = shutil.disk_usage(existing)
    inodes = os.statvfs(existing)
    return SpaceFacts(
        path=str(existing),
        kind=_kind(existing),
        total_bytes=usage.total,
        free_bytes=usage.free,
        free_inodes=inodes.f_favail if inodes.f_files else None,
        writable=os.access(existing, os.W_OK | os.X_OK),
        own_bytes=_bytes_in(folder),
    )


def _kind(path: Path) -> str:
    """Return the type of the file system with the longest mount point above `path`."""
    real = path.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if real.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else ""


def _bytes_in(folder: Path) -> int:
    """Return the bytes of the files below `folder`, some of which may be removed meanwhile."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(top, name)).st_size  # noqa: PTH118 - there can be 100,000 files
            except OSError:
                continue
    return total


def limit_facts(config: Path = SSHD_CONFIG) -> LimitFacts:
    """Return this login's limits, and sshd's if its configuration can be read."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = sshd_settings(config)
    known = settings is not None
    settings = settings or {}
    sessions = settings.get("maxsessions", "")
    return LimitFacts(
        open_files=soft,
        open_files_hard=hard,
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        max_startups=settings.get("maxstartups", SSHD_DEFAULT_STARTUPS if known else ""),
        max_sessions=(int(sessions) if sessions.isdecimal() else SSHD_DEFAULT_SESSIONS) if known else None,
    )


def sshd_settings(config: Path) -> dict[str, str] | None:
    """Return the first value of every keyword before any Match block, with included files; None if unreadable."""
    settings: dict[str, str] = {}
    try:
        lines = config.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.replace("=", " ", 1).split(None, 1)
        if len(words) < 2 or words[0].startswith("#"):
            continue
        key, value = words[0].lower(), words[1].strip().strip('"')
        if key == "match":
            break
        if key == "include":
            for found in _included(config, value):
                settings = {**(sshd_settings(found) or {}), **settings}
        settings.setdefault(key, value)
    return settings


def _included(config: Path, patterns: str) -> list[Path]:
    """Return the files of an Include line in sshd's order: by name, relative to the configuration's folder."""
    found: list[Path] = []
    for pattern in patterns.split():
        path = Path(pattern) if pattern.startswith("/") else config.parent / pattern
        found += sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
    return found
