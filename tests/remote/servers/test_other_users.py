"""Other users of the host cannot make `stop` or `free` wait, end a foreign process, or empty a folder."""

from __future__ import annotations

import io
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from remote.context import Context
from remote.report import Report
from remote.servers.housekeeping import dump
from remote.servers.lifecycle.ending import wait_until
from remote.servers.lifecycle.stop import stop
from remote.shared.messages.server import Needs, ServerSpec, ServerState, StopRequest
from remote.shared.paths import Workdir
from remote.shared.processes import reference
from tests.attacks.stranger import VICTIM, needs_root, open_to_all, run_as, start_as

pytestmark = [pytest.mark.processes, needs_root]

LISTENS = """

s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(1); print(s.getsockname()[1], flush=True); sys.stdin.read()
"""


@pytest.fixture
def here(tmp_path: Path) -> Context:
    return Context(Workdir(tmp_path / "root's"), Report(io.StringIO()), operator="root@laptop")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return open_to_all(tmp_path / "scratch")


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[str]]:
    process = start_as("sys.stdin.read()", uid=VICTIM)
    assert wait_until(lambda: psutil.Process(process.pid).uids().real == VICTIM, 10)
    yield process
    process.communicate()


def marked(folder: Path, port_of: list[int]) -> subprocess.Popen[str]:
    """The stranger's process on a port, with a mark that names a folder of its own."""
    process = start_as(LISTENS, env={"ROOST_SERVER": f"{folder}#tok"})
    assert process.stdout is not None
    port_of.append(int(process.stdout.readline()))
    return process


def ask(port: int, dumps: Path, *, force: bool) -> StopRequest:
    needs = [Needs(server="main", port=port, dump_dir=str(dumps))]
    return StopRequest(needs=needs, force=force, grace_seconds=1.0)


def test_a_made_up_record_does_not_have_root_end_another_user_s_process(
    here: Context, scratch: Path, victim: subprocess.Popen[str]
) -> None:
    folder, ports = scratch / "w/servers/x", list[int]()
    spec = ServerSpec(model="m", port=1)
    state = ServerState(
        name="x", mode="extract", status="ready", port=1, model="m", command=[], log="l", mark=f"{folder}#tok",
        supervisor=reference(victim.pid), spec=spec, started_at=time.time(),
    )  # fmt: skip
    run_as("os.makedirs(sys.argv[1]); open(sys.argv[1] + '/state.json', 'w').write(sys.argv[2])", str(folder),
           state.model_dump_json())  # fmt: skip
    attacker = marked(folder, ports)
    try:
        result = stop(ask(ports[0], scratch / "none", force=True), here)
    finally:
        attacker.communicate()
    assert [row.pid for row in result.others] == [attacker.pid]
    assert victim.poll() is None


def test_a_fifo_behind_a_mark_or_as_a_marker_holds_nobody(here: Context, scratch: Path) -> None:
    folder, dumps, ports = scratch / "w/servers/x", scratch / "hs", list[int]()
    run_as("os.makedirs(sys.argv[1]); os.mkfifo(sys.argv[1] + '/state.json'); "
           "os.mkdir(sys.argv[2]); os.mkfifo(sys.argv[2] + '/.roost')", str(folder), str(dumps))  # fmt: skip
    attacker = marked(folder, ports)
    began = time.monotonic()
    try:
        result = stop(ask(ports[0], dumps, force=False), here)
    finally:
        attacker.communicate()
    assert time.monotonic() - began < 30
    assert result.freed == []
    assert [row.pid for row in result.others] == [attacker.pid]


def test_a_marker_that_another_user_wrote_or_linked_frees_nothing(here: Context, scratch: Path) -> None:
    victims, mine = scratch / "victim's", here.workdir.servers
    victims.mkdir()
    (victims / "precious").write_text("states")
    dumps = scratch / "hs"
    run_as("os.mkdir(sys.argv[1]); open(sys.argv[1] + '/.roost', 'w').write(sys.argv[2] + '/main#tok'); "
           "os.symlink(sys.argv[3], sys.argv[1] + '/more')", str(dumps), str(mine), str(victims))  # fmt: skip
    assert dump.claimed_by(dumps) == ""
    assert not dump.is_marked(dumps)
    assert stop(ask(1, dumps, force=True), here).freed == []
    assert (victims / "precious").read_text() == "states"
    assert sorted(os.listdir(dumps)) == [".roost", "more"]
