"""Three of sixteen hosts are dead, each in another way: the others are shown first, and the command ends."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hosts.errors import HostUnreachableError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host, Inventory
from hosts.practice.ports import free_port
from hosts.practice.sshd import PrivateSshd
from remote.shared.messages.hello import HelloRequest, HelloResult

pytestmark = pytest.mark.ssh
DEADLINE = 30.0
"""Of a dead host. The living answer long before, on the busiest of machines too."""


@pytest.fixture
def dead() -> Iterator[dict[str, int]]:
    """Ports: one that nobody listens on, one that drops what comes, one that takes connections and says nothing."""
    with ExitStack() as held:
        full = held.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # the kernel drops further connections while this one is not accepted
        held.enter_context(socket.create_connection(full.getsockname()))
        mute = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        yield {"refused": free_port(), "blackholed": full.getsockname()[1], "mute": mute.getsockname()[1]}


@pytest.mark.parametrize("ssh", ["fabric", "openssh"])
def test_answers_of_living_hosts_are_shown_before_dead_hosts_time_out(
    tmp_path: Path, dead: dict[str, int], ssh: str
) -> None:
    server = PrivateSshd(tmp_path / "etc", tmp_path / "home")
    ref, port = server.start()
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(server.known_hosts_line(port))
    common = Host(
        name="box",
        address="127.0.0.1",
        identity_file=str(server.client_key),
        ssh_config=str(tmp_path / "none"),
        known_hosts=str(known_hosts),
        connect_timeout=DEADLINE,
        python=sys.executable,
        ssh=ssh,
    )
    ports = {**dead, **{f"living{number}": port for number in range(13)}}
    hosts = [common.model_copy(update={"name": name, "ssh_port": port}) for name, port in ports.items()]
    fleet = Fleet(Inventory(path=tmp_path, hosts={}, local=Host(name="local", connection="local")), hosts)
    told: list[Outcome[Any]] = []
    fleet.call("hello", HelloRequest(), HelloResult, on_outcome=told.append)
    fleet.close()
    server.stop(ref)
    assert {outcome.host.name for outcome in told if not outcome.ok} == dead.keys(), told
    assert all(isinstance(outcome.error, HostUnreachableError) for outcome in told if not outcome.ok)
    assert {outcome.host.name for outcome in told[-2:]} == {"blackholed", "mute"}
    waited = [str(outcome.error) for outcome in told[-2:]]
    assert all(f"within {DEADLINE:.0f} s" in one for one in waited), waited
