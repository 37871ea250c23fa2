"""Which files, devices and folders a process holds, from /proc: what `fuser` shows, for all processes in one pass.

Runs on the host, called by `obstacles` and `shm`. Read-only. Another user's process shows nothing without root.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

PROC = Path("/proc")


def held_paths(pid: int) -> set[str]:
    """Paths that `pid` has open, mapped, or as its working folder; empty where it ended or is closed to us."""
    return {*_links(PROC / str(pid)), *_maps(PROC / str(pid) / "maps")}


def holders_of(wanted: set[str], folders: tuple[str, ...] = ()) -> Iterator[tuple[psutil.Process, set[str]]]:
    """Processes with the paths of `wanted`, or below one of `folders`, that each of them holds."""
    below = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    for process in psutil.process_iter():
        held = {
            path
            for path in held_paths(process.pid)
            if path in wanted or path in folders or (below and path.startswith(below))
        }
        if held:
            yield process, held


def mapped_below(folder: Path) -> set[str]:
    """All paths below `folder` that any process holds."""
    return set().union(*(held for _, held in holders_of(set(), (str(folder),))))


def _links(process: Path) -> Iterator[str]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return
    for link in [*descriptors, process / "cwd"]:
        try:
            yield _cleaned(str(link.readlink()))
        except OSError:
            continue


def _maps(file: Path) -> Iterator[str]:
    """Lines are `range perms offset device inode path`; the path may hold spaces."""
    try:
        content = file.read_text(errors="surrogateescape")
    except OSError:
        return
    for line in content.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/"):
            yield _cleaned(fields[5])


def _cleaned(path: str) -> str:
    return path.removesuffix(" (deleted)")
