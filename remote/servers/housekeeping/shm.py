"""Finds and removes shared memory that dead SGLang, NCCL and torch processes left in /dev/shm.

Runs on the host, called by `stop`. Removes a file only if it belongs to this user, its name is of a known family, no
process has it open or mapped, and it is older than `MIN_AGE_SECONDS`.
"""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from remote.servers.probing.handles import held_inodes

FOLDER = Path("/dev/shm")  # noqa: S108
FAMILIES = (
    r"sglang_loads_.+\.shm",  # SGLang's load snapshots
    r"sgl_shm_.+",  # SGLang's shared tensors
    r"multi_tokenizer_args_\d+",
    r"nccl-[A-Za-z0-9]{6}",  # NCCL's intra-node channels
    r"torch_\d+_\d+_\d+",  # torch.multiprocessing storages
    r"psm_[0-9a-f]{8}",  # multiprocessing.shared_memory, SGLang's broadcast rings among them
    r"cuda\.shm\..+",
    r"sem\.mp-[a-z0-9_]{8}",
)
_NAME = re.compile("|".join(f"(?:{family})" for family in FAMILIES))
MIN_AGE_SECONDS = 5.0


@dataclass(frozen=True)
class Leftover:
    """One shared-memory file that no process has open or mapped."""

    path: Path
    size_bytes: int
    inode: int


def leftovers(since: float = 0.0, folder: Path = FOLDER, min_age_seconds: float = MIN_AGE_SECONDS) -> list[Leftover]:
    """Return the files that dead processes left since the Unix time `since`, sorted by name."""
    candidates = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        status = path.lstat()
        if (
            _NAME.fullmatch(path.name)
            and stat.S_ISREG(status.st_mode)
            and status.st_uid == os.geteuid()
            and status.st_ctime >= since
            and time.time() - status.st_ctime >= min_age_seconds
        ):
            candidates.append(Leftover(path, status.st_size, status.st_ino))
    held = held_inodes(folder.stat().st_dev) if candidates else set()
    return [left for left in candidates if left.inode not in held]


def remove(found: list[Leftover]) -> int:
    """Remove the files and return the bytes freed."""
    for left in found:
        left.path.unlink(missing_ok=True)
    return sum(left.size_bytes for left in found)
