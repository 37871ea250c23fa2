"""The verb as a process on this machine, also for a user who may do nothing."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.facts.machine import machine_facts, space_facts
from remote.facts.ports import port_facts
from remote.shared.messages.envelope import LINE, Result
from remote.shared.messages.facts import Facts
from remote.shared.messages.server import Needs
from remote.shared.paths import Workdir

ROOT = Path(__file__).parents[3]
DEADLINE_SECONDS = 120.0


def _facts(workdir: Path, request: dict[str, object]) -> Facts:
    call = {"verb": "facts", "workdir": str(workdir), "request": request}
    ended = subprocess.run(
        [sys.executable, "-m", "remote", "facts"],
        cwd=ROOT,
        input=json.dumps(call).encode() + b"\n",
        stdout=subprocess.PIPE,
        timeout=DEADLINE_SECONDS,
        check=True,
    )
    line = LINE.validate_json(ended.stdout.splitlines()[-1])
    assert isinstance(line, Result)
    return Facts.model_validate(line.value)


def test_this_host_s_own_sglang_is_found_and_supported(tmp_path: Path) -> None:
    found = _facts(tmp_path / "it's a workdir", {})
    assert found.capture.problem == ""
    assert found.capture.supported
    assert found.python.executable == sys.executable
    assert found.python.packages["sglang"]
    assert found.model is None
    assert not (tmp_path / "it's a workdir").exists(), "looking changes nothing"


def test_a_taken_port_names_its_holder(tmp_path: Path, holder: tuple[int, int]) -> None:
    found = _facts(tmp_path, {"needs": [{"server": "main", "port": holder[0]}]})
    assert [taken.port for taken in found.ports] == [holder[0]]
    assert str(holder[1]) in found.ports[0].holder
    assert not found.ports[0].ours


@pytest.fixture
def holder() -> Iterator[tuple[int, int]]:
    """A port that another process listens on, and that process's pid."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        process = subprocess.Popen(["sleep", "600"], pass_fds=[listening.fileno()])
    yield port, process.pid
    process.kill()
    process.wait()


@pytest.fixture
def as_nobody(tmp_path: Path, holder: tuple[int, int]) -> Iterator[None]:
    """This very process, with the rights of `nobody` for the length of a test."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    other = pwd.getpwnam("nobody").pw_uid
    (tmp_path / "closed").mkdir(mode=0o700)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.name.startswith(("pytest-", "popen-")) or folder == tmp_path:
            folder.chmod(0o711)
    os.setresuid(other, other, 0)
    yield
    os.setresuid(0, 0, 0)


def test_an_unprivileged_user_gets_what_it_may_see(tmp_path: Path, holder: tuple[int, int], as_nobody: None) -> None:
    closed = tmp_path / "closed"
    assert space_facts(closed / "workdir").path == str(closed)
    assert not space_facts(closed / "workdir").writable
    assert machine_facts().root is False
    needs = [Needs(server="main", port=holder[0])]
    [taken] = port_facts(needs, Workdir(tmp_path))
    assert taken.holder == "", "somebody listens, and nobody may not see who"
    assert not taken.ours
