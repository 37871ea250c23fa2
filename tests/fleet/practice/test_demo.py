"""A complete `make demo`, after a demo that was killed; it leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.practice import fleet, processes

pytestmark = [pytest.mark.ssh, pytest.mark.engine, pytest.mark.reader, pytest.mark.timeout(2400)]


@pytest.fixture
def root(practice_root: Path, clone: Path) -> Iterator[Path]:
    if not (practice_root / ".readers").exists():
        (practice_root / ".readers").symlink_to(clone / ".readers")
    yield practice_root
    fleet.down(practice_root)


def demo(root: Path, clone: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "hosts.practice.demo", str(root)]
    return subprocess.Popen(
        command,
        cwd=clone,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_demo_works_after_a_killed_demo(root: Path, clone: Path) -> None:
    killed = demo(root, clone)
    assert killed.stdout is not None
    seen = ""
    while "$ inv extract" not in seen:
        line = killed.stdout.readline()
        assert line, seen
        seen += line
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert {process.kind for host in fleet.status(root) for process in host.running} >= {"server"}

    whole = demo(root, clone)
    said, _ = whole.communicate()
    assert whole.returncode == 0, said
    assert "Left by an earlier demo: practice1: ended server main" in said
    assert re.search(r"records +300 of 300", said)
    assert "opened by speculators-0.9.0's ArrowDataset (all finite)" in said
    # `inv stop` ended all but the recorder, which ends by itself five minutes later (docs/watching.md).
    assert [[process.kind for process in host.running] for host in fleet.status(root)] == [["recorder"], ["recorder"]]
    recorders = [process.process for host in fleet.status(root) for process in host.running]
    fleet.down(root)
    assert [processes.find(recorder) for recorder in recorders] == [None, None]
