"""Leftover shared memory is removed only if its kind is known, it is this user's, and no process holds it."""

from __future__ import annotations

import mmap
import multiprocessing
import time
from pathlib import Path

from remote.servers.housekeeping import shm


def test_a_dead_processs_shared_memory_is_removed_and_all_other_stays(tmp_path: Path) -> None:
    dead = ["nccl-aB3xYz", "sglang_loads_abc_def.shm", "torch_4711_123_0", "psm_0a1b2c3d"]
    for name in (*dead, "my_precious", "nccl-notes.txt", "psm_held0000"[:4] + "deadbeef"):
        (tmp_path / name).write_bytes(b"x" * 100)
    held = tmp_path / "psm_deadbeef"
    with held.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        found = shm.leftovers(folder=tmp_path, min_age_seconds=0.0)
    assert sorted(left.path.name for left in found) == sorted(dead)
    assert shm.remove(found) == 400
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_precious", "nccl-notes.txt", "psm_deadbeef"]


def test_shared_memory_from_before_the_servers_start_stays(tmp_path: Path) -> None:
    (tmp_path / "nccl-aB3xYz").touch()
    assert shm.leftovers(since=time.time() + 10, folder=tmp_path, min_age_seconds=0.0) == []


def test_shared_memory_that_was_created_just_now_stays(tmp_path: Path) -> None:
    (tmp_path / "nccl-aB3xYz").touch()
    assert shm.leftovers(folder=tmp_path, min_age_seconds=60.0) == []


def test_a_living_process_keeps_its_semaphores() -> None:
    """Its maps name the file that glibc made first and deleted, not the semaphore's own."""
    lock = multiprocessing.get_context("forkserver").Lock()
    name = f"sem.{lock._semlock.name.removeprefix('/')}"  # type: ignore[attr-defined]
    assert (shm.FOLDER / name).exists()
    assert name not in {left.path.name for left in shm.leftovers(min_age_seconds=0.0)}
