"""A part of the supervisor that fails ends the server with the cause."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any, cast

import pytest

from remote.context import Context
from remote.servers.lifecycle import life, peers, records
from remote.servers.lifecycle.awaiting import await_ready
from remote.servers.lifecycle.peers import Link, Say
from remote.servers.lifecycle.stop import stop
from remote.shared.errors import HostError
from remote.shared.messages.server import ServerSpec, ServerState, StopRequest, SuperviseRequest
from remote.shared.processes import MARK, find

pytestmark = pytest.mark.timeout(120)


async def fail(*_: object) -> Any:
    raise KeyError("a rank's title")


@pytest.mark.processes
def test_a_watch_that_fails_ends_the_server_and_is_its_cause(
    context: Context, prepare: Callable[..., ServerState], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "_rank_died", fail)
    state = prepare()
    record = records.Record(context.workdir.server("main"), state)
    order = SuperviseRequest(name="main", env={**os.environ, MARK: state.mark})

    async def live() -> None:
        fault: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        await life.Life(record, order, asyncio.Event(), fault).run()

    asyncio.run(live())
    assert record.state.status == "failed"
    assert record.state.cause == 'Its supervisor could no longer watch it: KeyError: "a rank\'s title".'
    assert find(record.state.server) is None


class Writer:
    """A peer's end of the link; while the first one drains, another node links."""

    def __init__(self, on_drain: Callable[[], None] = lambda: None) -> None:
        self.said: list[bytes] = []
        self._on_drain = on_drain

    def write(self, line: bytes) -> None:
        self.said.append(line)

    async def drain(self) -> None:
        self._on_drain()


def _link() -> Link:
    spec = ServerSpec(name="main", model="m", port=1, nodes=["a", "b", "c"], node_rank=0, dist_init_addr="127.0.0.1:1")
    return Link(spec, "token")


def test_a_node_that_links_during_a_beat_does_not_end_the_beats() -> None:
    async def beat() -> None:
        link = _link()
        late = Writer()

        def links() -> None:
            link._writers[2] = cast(Any, late)

        first = Writer(links)
        link._writers[1] = cast(Any, first)
        await link._say(Say(kind="beat"))
        await link._say(Say(kind="beat"))
        assert (len(first.said), len(late.said)) == (2, 1)

    asyncio.run(beat())


def test_a_link_whose_part_fails_ends_this_node_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost() -> str:
        link = _link()
        monkeypatch.setattr(peers, "BEAT_SECONDS", 0.0)
        monkeypatch.setattr(link, "_say", fail)
        monkeypatch.setattr(asyncio, "start_server", _no_server)
        await link.open()
        return (await asyncio.wait_for(link.lost(), 30)).cause

    async def _no_server(*_: object, **__: object) -> None:
        return None

    assert "this node's link to the others failed (KeyError" in asyncio.run(lost())


@pytest.mark.processes
def test_a_supervisor_that_is_killed_while_its_server_starts_is_one_sentence(
    context: Context, start: Callable[..., ServerState], until: Callable[..., ServerState]
) -> None:
    start("--hang")
    supervisor = until("starting").supervisor
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    with pytest.raises(
        HostError,
        match=r"^The supervisor of server 'main' was killed\. .*`inv stop` ends what is left of the server\.$",
    ):
        await_ready(["main"], context)
    assert stop(StopRequest(grace_seconds=1.0), context).remaining == []
