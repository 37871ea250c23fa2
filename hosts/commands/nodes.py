"""Servers that span hosts: gives all parts a rendezvous on the private network, and ranks in the order of `nodes`."""

from __future__ import annotations

import secrets

from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.inventory.model import Host
from remote.shared.messages.server import NODES_TOKEN, AddressRequest, AddressResult, ServerSpec

FIRST_RENDEZVOUS_PORT = 10_000
"""Rendezvous ports stay below 30,000, because Linux chooses the ports of outgoing connections from 32,768 on."""


def span_hosts(fleet: Fleet, specs: dict[str, list[ServerSpec]]) -> dict[str, list[ServerSpec]]:
    """Return `specs` (by host) with rank, rendezvous and token filled in for every server that has `nodes`.

    Asks the host of rank 0 for its private address. Raises UsageError if a node was not chosen, or if its entry differs
    from rank 0's.
    """
    spanning = {spec.name: spec for found in specs.values() for spec in found if spec.nodes}
    if not spanning:
        return specs
    filled = {name: _rendezvous(fleet, spec, specs) for name, spec in spanning.items()}
    return {
        host: [_part(fleet, host, spec, *filled[spec.name]) if spec.nodes else spec for spec in found]
        for host, found in specs.items()
    }


def _rendezvous(fleet: Fleet, spec: ServerSpec, specs: dict[str, list[ServerSpec]]) -> tuple[str, str]:
    """Return the rendezvous address and the token of one server."""
    for node in spec.nodes:
        mine = [other for other in specs.get(node, []) if other.name == spec.name]
        if not mine:
            raise UsageError(
                f"Server {spec.name!r} spans {', '.join(spec.nodes)}, but {node} is not chosen or does not have it.",
                remedy="Choose all hosts of the server, and give each the same entry under `servers`.",
            )
        if (mine[0].nodes, mine[0].port, mine[0].tp) != (spec.nodes, spec.port, spec.tp):
            raise UsageError(f"{node} has server {spec.name!r} with other nodes, port or tp than {spec.nodes[0]}.")
    first = _host(fleet, spec.nodes[0])
    request = AddressRequest(interface=_interface(first))
    found = fleet.backend(first).call("address", request, AddressResult).address
    port = FIRST_RENDEZVOUS_PORT + 2 * (spec.port % 10_000)
    return (f"[{found}]:{port}" if ":" in found else f"{found}:{port}"), secrets.token_hex(16)


def _part(fleet: Fleet, host: str, spec: ServerSpec, rendezvous: str, token: str) -> ServerSpec:
    """Return one node's spec; NCCL and gloo use the private interface unless the inventory says otherwise."""
    interface = _interface(_host(fleet, host))
    env = {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface, **spec.env, NODES_TOKEN: token}
    rank = spec.nodes.index(host)
    return spec.model_copy(update={"node_rank": rank, "dist_init_addr": rendezvous, "env": env})


def _host(fleet: Fleet, name: str) -> Host:
    return next(host for host in fleet.hosts if host.name == name)


def _interface(host: Host) -> str:
    if host.private_interface is None:
        raise UsageError(
            f"{host.name} is a node of a server over several hosts but has no `private_interface`.",
            remedy="Name the network interface between the hosts; the rendezvous is never on a public interface.",
        )
    return host.private_interface
