"""A server over several hosts: ranks by the list, one rendezvous on the private network, all nodes or none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.commands.nodes import span_hosts
from hosts.errors import HostError, UsageError
from hosts.fleet import Fleet
from hosts.inventory.model import Host, Inventory, Mode, ServerEntry
from hosts.inventory.servers import server_specs
from remote.shared.messages.server import NODES_TOKEN, ServerSpec

NODES = ["gpu1", "gpu2"]


def host(name: str, tmp_path: Path, interface: str | None = "lo", tp: int = 16) -> Host:
    return Host(
        name=name,
        connection="local",
        python=sys.executable,
        workdir=str(tmp_path / name),
        model="/models/kimi",
        private_interface=interface,
        servers=[ServerEntry(name="wide", gpus=list(range(8)), tp=tp, nodes=NODES)],
        modes={"serve": Mode()},
    )


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(Inventory(path=tmp_path, hosts={}, local=Host(name="local")), [host(name, tmp_path) for name in NODES])
    yield made
    made.close()


def specs_of(fleet: Fleet) -> dict[str, list[ServerSpec]]:
    return {host.name: server_specs(host, "serve") for host in fleet.hosts}


def test_ranks_follow_the_list_and_all_meet_at_rank_0(fleet: Fleet) -> None:
    spanned = span_hosts(fleet, specs_of(fleet))
    first, second = spanned["gpu1"][0], spanned["gpu2"][0]
    assert (first.node_rank, second.node_rank) == (0, 1)
    assert first.dist_init_addr == second.dist_init_addr == "127.0.0.1:26000"
    assert first.env[NODES_TOKEN] == second.env[NODES_TOKEN] != ""
    assert second.env["NCCL_SOCKET_IFNAME"] == "lo"


def test_a_server_on_one_host_is_not_changed(fleet: Fleet, tmp_path: Path) -> None:
    alone = {"gpu1": [ServerSpec(model="/m")]}
    assert span_hosts(fleet, alone) is alone


def test_every_host_of_a_server_must_be_chosen(fleet: Fleet) -> None:
    with pytest.raises(UsageError, match="gpu2 is not chosen"):
        span_hosts(fleet.narrowed(fleet.hosts[:1]), {"gpu1": server_specs(fleet.hosts[0], "serve")})


def test_the_nodes_entries_of_one_server_must_agree(fleet: Fleet, tmp_path: Path) -> None:
    differing = specs_of(fleet) | {"gpu2": server_specs(host("gpu2", tmp_path, tp=8), "serve")}
    with pytest.raises(UsageError, match="other nodes, port or tp"):
        span_hosts(fleet, differing)


def test_nodes_meet_only_on_the_named_private_interface(fleet: Fleet, tmp_path: Path) -> None:
    fleet.hosts = [host(name, tmp_path, interface=None) for name in NODES]
    with pytest.raises(UsageError, match="private_interface"):
        span_hosts(fleet, specs_of(fleet))


def test_a_missing_interface_is_named_with_the_existing_interfaces(fleet: Fleet, tmp_path: Path) -> None:
    fleet.hosts = [host(name, tmp_path, interface="ib9") for name in NODES]
    with pytest.raises(HostError, match="no network interface 'ib9'") as caught:
        span_hosts(fleet, specs_of(fleet))
    assert "lo" in caught.value.remedy
