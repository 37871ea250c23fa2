"""A server over several hosts lives and dies as a whole: two supervisors, linked over loopback."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from hosts.practice.ports import free_ports
from remote.context import Context
from remote.servers.lifecycle import records
from remote.servers.lifecycle.detach import start_supervisor
from remote.servers.lifecycle.peers import LINK_PORT_OFFSET
from remote.servers.lifecycle.stop import stop
from remote.shared.messages.server import NODES_TOKEN, ServerState, StopRequest, SuperviseRequest
from remote.shared.processes import MARK, find
from tests.remote.servers.states import server_of, supervisor_of

Start = Callable[..., ServerState]


@pytest.fixture
def both(prepare: Start, context: Context) -> Callable[..., None]:
    """Start `node0` and `node1` of one server; `node1` may be given another token."""
    address = f"127.0.0.1:{free_ports(1 + LINK_PORT_OFFSET)[0]}"

    def begin(token: str = "t0ken", other_token: str = "t0ken", **spec: Any) -> None:
        for rank in range(2):
            state = prepare(
                name=f"node{rank}",
                nodes=["gpu1", "gpu2"],
                node_rank=rank,
                dist_init_addr=address,
                **spec,
            )
            if rank:  # the stand-ins share this host; only rank 0 is asked for a generation
                state = state.model_copy(update={"command": [*state.command, "--port", "0"]})
                records.save(context.workdir.server(state.name), state)
            secret = other_token if rank else token
            order = SuperviseRequest(name=state.name, env={**os.environ, MARK: state.mark, NODES_TOKEN: secret})
            start_supervisor(state, order, context)

    return begin


def test_all_are_ready_with_rank_0_and_one_nodes_death_ends_the_other_by_name(
    both: Callable[..., None], until: Start
) -> None:
    both()
    assert until("ready", "failed", name="node0").status == "ready"
    other = until("ready", "failed", name="node1")
    assert other.status == "ready"
    os.kill(server_of(other).pid, signal.SIGKILL)
    ended = until("failed", name="node0")
    assert "node gpu2 (rank 1) ended: It was killed by SIGKILL" in ended.cause
    assert find(ended.server) is None


def test_a_supervisor_that_vanishes_ends_the_other_node(both: Callable[..., None], until: Start) -> None:
    both()
    first = until("ready", name="node0")
    until("ready", name="node1")
    os.kill(supervisor_of(first).pid, signal.SIGKILL)
    assert "the supervisor of node gpu1 (rank 0) is no longer heard" in until("failed", name="node1").cause


def test_stopping_one_node_stops_the_server(both: Callable[..., None], until: Start, context: Context) -> None:
    both()
    until("ready", name="node0")
    until("ready", name="node1")
    stop(StopRequest(names=["node1"]), context)
    assert until("stopped", "failed", name="node0").status == "stopped"


def test_a_stranger_without_the_token_is_not_linked(both: Callable[..., None], until: Start) -> None:
    both(other_token="wrong", ready_timeout_seconds=3.0)
    assert until("ready", "failed", name="node0").status == "failed"
