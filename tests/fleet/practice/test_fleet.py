"""The practice fleet: `up` is idempotent and repairs killed hosts, and `down` ends only the fleet's processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hosts.errors import HostError, UsageError
from hosts.inventory.model import Host
from hosts.practice import fleet
from hosts.practice.paths import PracticePaths
from hosts.transport.ssh import SshBackend

pytestmark = pytest.mark.ssh


@pytest.fixture
def root(practice_root: Path) -> Iterator[Path]:
    yield practice_root
    fleet.down(practice_root)


def run(host: Host, *argv: str) -> str:
    """The stdout of a program on that host, over SSH."""
    backend = SshBackend(host)
    try:
        process = backend.open(list(argv))
        process.close_stdin()
        text = b""
        while chunk := process.read(4096, timeout=20):
            text += chunk
        assert process.wait(20) == 0
        return text.decode()
    finally:
        backend.close()


def sshd_pids(root: Path) -> list[int]:
    return [host.sshd.pid for host in fleet._read(PracticePaths(root)).hosts]


def test_each_host_has_a_home_of_its_own(root: Path) -> None:
    fleet.up(root, hosts=2)
    homes = [run(host, "printenv", "HOME").strip() for host in fleet.inventory_hosts(root)]
    assert homes == [str(PracticePaths(root).host(name).home) for name in ("practice1", "practice2")]


def test_up_again_changes_nothing(root: Path) -> None:
    fleet.up(root, hosts=2)
    before = sshd_pids(root)
    fleet.up(root, hosts=2)
    assert sshd_pids(root) == before


def test_up_after_everything_was_killed_brings_the_same_hosts_back(root: Path) -> None:
    ports = [host.ssh_port for host in fleet.up(root, hosts=2)]
    killed = [psutil.Process(pid) for pid in sshd_pids(root)]
    for process in killed:
        process.kill()
    psutil.wait_procs(killed, timeout=10)
    assert [host.up for host in fleet.status(root)] == [False, False]
    assert [host.ssh_port for host in fleet.up(root, hosts=2)] == ports
    assert [run(host, "echo", "it's here") for host in fleet.inventory_hosts(root)] == ["it's here\n"] * 2


def test_a_smaller_fleet_ends_the_surplus_hosts(root: Path) -> None:
    fleet.up(root, hosts=2)
    second = sshd_pids(root)[1]
    assert [host.name for host in fleet.up(root, hosts=1)] == ["practice1"]
    assert not psutil.pid_exists(second)


def test_down_ends_open_sessions_and_keeps_what_they_detached(root: Path) -> None:
    fleet.up(root, hosts=1)
    (host,) = fleet.inventory_hosts(root)
    detached = int(run(host, "sh", "-c", "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!"))
    backend = SshBackend(host)
    session = backend.open(["cat"])
    try:
        assert fleet.down(root) == [f"practice1: ended sshd on port {host.ssh_port}"]
        assert session.read(1, timeout=20) == b""
        assert fleet.status(root) == []
        assert psutil.pid_exists(detached)
    finally:
        backend.close()
        psutil.Process(detached).kill()


def test_down_removes_only_dump_directories_of_roost(root: Path) -> None:
    fleet.up(root, hosts=2)
    first, second = (PracticePaths(root).host(name).dump_dir for name in ("practice1", "practice2"))
    for folder in (first, second):
        folder.mkdir()
    (first / ".roost").touch()
    try:
        fleet.down(root)
        assert (first.exists(), second.exists()) == (False, True)
    finally:
        second.rmdir()


def test_a_stopped_fleet_is_reported_as_down(root: Path) -> None:
    with pytest.raises(HostError, match="not up"):
        fleet.inventory_hosts(root)


@pytest.mark.parametrize("hosts", [0, 17])
def test_a_senseless_number_of_hosts_is_refused(root: Path, hosts: int) -> None:
    with pytest.raises(UsageError, match="1 to 16"):
        fleet.up(root, hosts=hosts)


def test_a_clone_without_an_engine_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="make engine"):
        fleet.up(tmp_path)


def test_another_users_port_is_not_taken(root: Path) -> None:
    port = fleet.up(root, hosts=1)[0].ssh_port
    fleet_state = PracticePaths(root).state.read_bytes()
    fleet.down(root)
    squatter = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        while not any(c.status == psutil.CONN_LISTEN for c in psutil.Process(squatter.pid).net_connections()):
            assert squatter.poll() is None
        PracticePaths(root).state.write_bytes(fleet_state)
        (host,) = fleet.up(root, hosts=1)
        assert host.up
        assert host.ssh_port != port
    finally:
        squatter.kill()
        squatter.communicate()
