"""A server that accepts connections but serves nothing is reported with the frozen process and a remedy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from remote.context import Context
from remote.servers.lifecycle import records
from remote.servers.lifecycle.ending import wait_until
from remote.servers.probing import pulse
from remote.servers.probing.pulse import WedgedError
from remote.shared.messages.server import CaptureState, ServersRequest, ServerState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

Start = Callable[..., ServerState]


def freeze(rank: psutil.Process) -> None:
    rank.suspend()
    assert wait_until(lambda: rank.status() == psutil.STATUS_STOPPED, 10), "the kernel stops it a moment later"


@pytest.fixture
def ranked(start: Start, until: Start, tmp_path: Path) -> tuple[ServerState, psutil.Process]:
    """A server that is ready, and its rank, without which it generates nothing."""
    file = tmp_path / "rank"
    start("--rank", str(file), "--needs-rank")
    return until("ready"), psutil.Process(int(file.read_text()))


def test_a_server_that_serves_says_how_fast(ranked: tuple[ServerState, psutil.Process], context: Context) -> None:
    state, _ = ranked
    said = asyncio.run(pulse.ask(state, context.workdir.server("main"), 30.0, canary=True))
    assert said.startswith("a generation came back after 0.")


def test_a_frozen_rank_is_named_with_the_command_that_mends_it(
    ranked: tuple[ServerState, psutil.Process], context: Context
) -> None:
    state, rank = ranked
    freeze(rank)
    began = time.monotonic()
    with pytest.raises(WedgedError) as caught:
        asyncio.run(pulse.ask(state, context.workdir.server("main"), 0.5, canary=False))
    assert time.monotonic() - began < 10
    assert f"sglang::scheduler_TP0 (pid {rank.pid}) is frozen (state T" in caught.value.message
    assert "`inv restart --mode serve`" in caught.value.remedy
    rank.resume()
    assert "a generation came back" in asyncio.run(pulse.ask(state, context.workdir.server("main"), 30.0, canary=False))


def test_a_look_at_all_servers_names_those_that_are_silent(
    ranked: tuple[ServerState, psutil.Process], context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rank = ranked
    asked = ServersRequest(ask=True)
    assert [report.problem for report in records.servers(asked, context).servers] == [""]
    monkeypatch.setattr(pulse, "LOOK_SECONDS", 0.5)
    freeze(rank)
    (report,) = records.servers(asked, context).servers
    assert report.problem.startswith("Server 'main' is wedged: ")
    assert [report.problem for report in records.servers(ServersRequest(), context).servers] == [""]


def test_a_server_whose_capture_moves_is_busy_and_not_wedged(
    ranked: tuple[ServerState, psutil.Process], context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _ = ranked
    (tmp_path / ".capture-1.json").write_text("{}")
    capture = CaptureState(
        attach="plugin", payload="p", version="1", boundaries=[1], final="pre", dump_dir=str(tmp_path)
    )
    busy = state.model_copy(update={"capture": capture})
    assert pulse.moved_lately(busy)
    monkeypatch.setattr(pulse, "LOOK_SECONDS", 0.0)
    assert asyncio.run(pulse.problems([(busy, context.workdir.server("main"))])) == {}
