"""Which files, devices and folders each process holds, from /proc: like `fuser`, for all processes in one pass.

Runs on the host, called by `obstacles` and `shm`. Read-only. Without root, other users' processes show nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

PROC = Path("/proc")


def held_paths(pid: int) -> set[str]:
    """Return the paths that `pid` has open, mapped or as its working folder; none if it ended or may not be read."""
    return {*_links(PROC / str(pid)), *_maps(PROC / str(pid) / "maps")}


def holders_of(wanted: set[str], folders: tuple[str, ...] = ()) -> Iterator[tuple[psutil.Process, set[str]]]:
    """Yield each process that holds a path of `wanted` or below one of `folders`, with those paths."""
    below = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    for process in psutil.process_iter():
        held = {
            path
            for path in held_paths(process.pid)
            if path in wanted or path in folders or (below and path.startswith(below))
        }
        if held:
            yield process, held


def held_inodes(device: int) -> set[int]:
    """Return the inodes of the file system `device` (a `st_dev`) that any process has open or mapped.

    Names would not do: glibc's `sem_open` maps a semaphore under a temporary name before it links the final one, so
    the maps of a living process name a deleted file.
    """
    return set().union(*(_inodes(PROC / str(pid), device) for pid in psutil.pids()))


def _inodes(process: Path, device: int) -> Iterator[int]:
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}"
    yield from (int(inode) for _, _, _, on, inode, *_ in _mappings(process / "maps") if on == wanted)
    for descriptor in _descriptors(process):
        with contextlib.suppress(OSError):
            status = descriptor.stat()
            if status.st_dev == device:
                yield status.st_ino


def _links(process: Path) -> Iterator[str]:
    for link in [*_descriptors(process), process / "cwd"]:
        with contextlib.suppress(OSError):
            yield _cleaned(str(link.readlink()))


def _descriptors(process: Path) -> list[Path]:
    try:
        return list((process / "fd").iterdir())
    except OSError:
        return []


def _maps(file: Path) -> Iterator[str]:
    for fields in _mappings(file):
        if len(fields) == 6 and fields[5].startswith("/"):
            yield _cleaned(fields[5])


def _mappings(file: Path) -> Iterator[list[str]]:
    """Yield the lines in fields: range, perms, offset, device, inode, path; the path may be missing or hold spaces."""
    try:
        content = file.read_text(errors="surrogateescape")
    except OSError:
        return
    yield from (line.split(maxsplit=5) for line in content.splitlines())


def _cleaned(path: str) -> str:
    return path.removesuffix(" (deleted)")
