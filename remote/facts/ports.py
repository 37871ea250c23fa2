"""Runs on the host for `remote.facts`: finds the processes that listen on the inventory's ports. Read-only."""

from __future__ import annotations

import socket

import psutil

from remote.servers.lifecycle import records
from remote.servers.probing.holders import port_holders
from remote.shared.messages.facts import PortFact
from remote.shared.messages.server import Needs
from remote.shared.paths import Workdir
from remote.shared.processes import members


def port_facts(needs: list[Needs], workdir: Workdir) -> list[PortFact]:
    """Return the ports that are in use."""
    return [fact for need in needs if (fact := _taken(need, workdir)) is not None]


def _taken(need: Needs, workdir: Workdir) -> PortFact | None:
    if not _answers(need.port):
        return None
    try:
        holders = port_holders(need.port)
    except psutil.AccessDenied:
        holders = []
    mine = _pids(workdir, need.server)
    return PortFact(
        port=need.port,
        server=need.server,
        holder="; ".join(holder.describe() for holder in holders),
        ours=any(holder.process.pid in mine for holder in holders),
    )


def _answers(port: int) -> bool:
    """Return whether a connect succeeds; the process table hides sockets of other users and containers."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _pids(workdir: Workdir, server: str) -> set[int]:
    state = records.load(workdir.server(server))
    if state is None or state.server is None:
        return set()
    return {process.pid for process in members(state.server, state.mark)}
