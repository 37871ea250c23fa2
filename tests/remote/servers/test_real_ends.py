"""Ends provoked for real: the kernel's out-of-memory killer in a cgroup, and a RAM disk that is full."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remote.context import Context
from remote.servers.lifecycle import records
from remote.servers.lifecycle.detach import start_supervisor
from remote.shared.messages.server import ServerState, SuperviseRequest
from remote.shared.processes import MARK

pytestmark = pytest.mark.namespaces

LIMIT_BYTES = 64 << 20
Start = Callable[..., ServerState]


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup (v1 or v2) of 64 MiB, by the file that takes processes into it."""
    group = _memory_group() / f"roost-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    limits = [group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists()]
    if not limits:
        group.rmdir()
        pytest.skip("the memory controller is not handed down to this cgroup")
    limits[0].write_text(str(LIMIT_BYTES))
    yield group / "cgroup.procs"
    group.rmdir()


def _memory_group() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
        if controllers == "":
            unified = Path("/sys/fs/cgroup") / path.lstrip("/")
    return unified


@pytest.fixture
def full_ram_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "ram disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    with contextlib.suppress(OSError):
        (folder / "filler").write_bytes(b"x" * (1 << 20))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def run_code(prepare: Start, context: Context) -> Callable[[str], None]:
    """Have a real supervisor run a piece of Python in a server's place."""

    def run(code: str) -> None:
        state = prepare().model_copy(update={"command": [sys.executable, "-c", code]})
        records.save(context.workdir.server(state.name), state)
        start_supervisor(state, SuperviseRequest(name=state.name, env={**os.environ, MARK: state.mark}), context)

    return run


def test_the_out_of_memory_killer_is_told_from_any_other_kill(
    run_code: Callable[[str], None], small_cgroup: Path, until: Start
) -> None:
    run_code(f"open({str(small_cgroup)!r}, 'w').write('0'); held = b'x' * ({LIMIT_BYTES} * 4)")
    ended = until("failed")
    assert ended.exit_code == -9
    assert "the kernel's out-of-memory killer ended" in ended.cause


def test_a_full_ram_disk_is_named_with_its_path(
    run_code: Callable[[str], None], full_ram_disk: Path, until: Start
) -> None:
    run_code(f"open({str(full_ram_disk / 'dump')!r}, 'wb').write(b'x' * (1 << 20))")
    ended = until("failed")
    assert ended.exit_code == 1
    assert "A file system is full" in ended.cause
    assert "`inv free`" in ended.cause
