"""One model over two hosts, for real: SGLang's own `--nnodes 2` over gloo, each node under its own workdir."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hosts.inventory.servers import flag_arguments
from hosts.practice.ports import free_port, free_ports
from hosts.practice.serving import CONTEXT_LENGTH, ENVIRONMENT, FLAGS
from remote.context import Context
from remote.report import Report
from remote.servers.lifecycle import ending, records
from remote.servers.lifecycle.peers import LINK_PORT_OFFSET
from remote.servers.lifecycle.serve import serve
from remote.servers.lifecycle.stop import stop
from remote.shared.messages.server import NODES_TOKEN, ServeRequest, ServerSpec, ServerState, StopRequest
from remote.shared.paths import Workdir
from remote.shared.processes import find
from tests.remote.servers.states import server_of

pytestmark = pytest.mark.engine

NODES = ["gpu1", "gpu2"]
END_SECONDS = 60.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Context]]:
    made = [Context(Workdir(tmp_path / name), Report(io.StringIO()), "tester@laptop") for name in NODES]
    yield made
    for context in made:
        stop(StopRequest(grace_seconds=5.0), context)


def test_two_nodes_serve_as_one_and_die_as_one(nodes: list[Context], tiny_model_path: Path) -> None:
    ports = [free_port(), free_port()]
    rendezvous = f"127.0.0.1:{free_ports(1 + LINK_PORT_OFFSET)[0]}"

    def start(rank: int) -> ServerState:
        spec = ServerSpec(
            name="wide",
            mode="serve",
            model=str(tiny_model_path),
            port=ports[rank],
            tp=2,
            flags=flag_arguments({**FLAGS, "context-length": CONTEXT_LENGTH, "max-running-requests": 4}),
            env={
                **ENVIRONMENT,
                "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
                "GLOO_SOCKET_IFNAME": "lo",
                NODES_TOKEN: "t0ken",
            },
            ready_timeout_seconds=300.0,
            nodes=NODES,
            node_rank=rank,
            dist_init_addr=rendezvous,
        )
        return serve(ServeRequest(servers=[spec]), nodes[rank]).servers[0]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(start, range(2))
    assert (first.status, second.status) == ("ready", "ready")
    assert "POST /generate HTTP/1.1" in Path(first.log).read_text()

    os.kill(server_of(second).pid, signal.SIGKILL)

    def state() -> ServerState:
        loaded = records.load(nodes[0].workdir.server("wide"))
        assert loaded is not None
        return loaded

    assert ending.wait_until(lambda: state().status == "failed", END_SECONDS)
    assert "node gpu2 (rank 1) ended" in state().cause
    assert ending.wait_until(lambda: find(server_of(first)) is None, END_SECONDS)
