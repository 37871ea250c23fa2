"""`inv doctor` over a real sshd: a login that prints, an account that may do little, hosts that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.doctor.examine import examine
from hosts.doctor.findings import Diagnosis
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host, Inventory
from hosts.practice.sshd import PrivateSshd
from hosts.transport.ssh import SshBackend
from tests.fleet.conftest import SshHost

pytestmark = pytest.mark.ssh


@pytest.fixture
def printing_host(tmp_path: Path, private_sshd: SshHost) -> Iterator[Host]:
    """A host whose `.bashrc` prints before every command, numbers too."""
    sshd = PrivateSshd(tmp_path / "sshd", tmp_path / "home")
    ref, port = sshd.start()
    (tmp_path / "home" / ".bashrc").write_text('echo "Welcome to box"; echo 1234567890.5; echo oops >&2\n')
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(sshd.known_hosts_line(port))
    yield private_sshd.host.model_copy(
        update={
            "name": "printing",
            "ssh_port": port,
            "identity_file": str(sshd.client_key),
            "known_hosts": str(known_hosts),
            "workdir": str(tmp_path / "work"),
        }
    )
    sshd.stop(ref)


def _doctor(*hosts: Host) -> list[Outcome[Diagnosis]]:
    fleet = Fleet(Inventory(path=Path("inventory.yaml"), hosts={}, local=hosts[0]), list(hosts))
    try:
        return fleet.each(examine)
    finally:
        fleet.close()


def _says(host: Host, program: str) -> str:
    """Everything that a command prints there before it ends."""
    backend = SshBackend(host)
    process = backend.open([program])
    try:
        return b"".join(iter(lambda: process.read(4096, 30.0), b"")).decode()
    finally:
        process.close()
        backend.close()


def test_a_login_that_prints_changes_no_measurement(printing_host: Host) -> None:
    assert _says(printing_host, "true").startswith("Welcome to box")
    [outcome] = _doctor(printing_host)
    way = outcome.result.network
    assert way is not None
    assert abs(way.clock_skew_seconds) < 5, "both ends are this machine"
    assert 0 < way.round_trip_seconds < 5
    assert way.bytes_per_second is not None
    assert way.bytes_per_second > 1e5
    assert {finding.subject for finding in outcome.result.findings} >= {"gpus", "sglang", "disk", "network", "clock"}


def test_a_missing_host_does_not_affect_the_others(printing_host: Host, tmp_path: Path) -> None:
    gone = printing_host.model_copy(update={"name": "gone", "ssh_port": 1})
    empty = tmp_path / "empty"
    empty.mkdir()
    poor = printing_host.model_copy(update={"name": "poor", "model": str(empty / "model"), "gpus": 8, "tp": 8})
    found = {outcome.host.name: outcome for outcome in _doctor(gone, printing_host, poor)}
    assert found["gone"].error is not None
    assert found["printing"].ok
    reds = {finding.subject for finding in found["poor"].result.findings if finding.level == "red"}
    assert reds >= {"gpus", "model"}
    assert found["poor"].result.is_red
