"""What a supervisor makes of a server's life."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from remote.context import Context
from remote.model_digest import model_digest
from remote.servers.lifecycle import ending, records, supervisor
from remote.servers.lifecycle.awaiting import await_ready
from remote.servers.lifecycle.stopping import stop_server
from remote.shared.errors import HostError
from remote.shared.messages.server import ServerState, SuperviseRequest
from remote.shared.processes import MARK, find
from remote.shared.supervised.pools import Pool
from tests.remote.servers.states import server_of, supervisor_of

Start = Callable[..., ServerState]


def test_a_server_that_generates_becomes_ready(start: Start, until: Start) -> None:
    start()
    state = until("ready", "failed")
    assert state.status == "ready", state.cause
    assert find(state.server) is not None
    server, watcher = server_of(state), supervisor_of(state)
    assert os.getsid(server.pid) == server.pid != os.getsid(watcher.pid) == watcher.pid


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)))
    return folder


def test_a_ready_server_says_which_weights_it_loaded(start: Start, until: Start, context: Context, model: Path) -> None:
    start(model=str(model))
    state = until("ready", "failed")
    assert state.weights == model_digest(model, context.workdir)
    (model / "model.safetensors").write_bytes(b"fine-tuned later")
    assert state.weights != model_digest(model, context.workdir)


def test_weights_that_are_replaced_while_they_are_loaded_end_the_start(start: Start, until: Start, model: Path) -> None:
    start("--replace", str(model / "model.safetensors"), model=str(model))
    state = until("ready", "failed")
    assert (state.status, state.weights) == ("failed", "")
    assert state.cause == f"The model's files in {model} changed while they were loaded."
    assert find(state.server) is None


def test_a_server_that_answers_health_but_no_generation_is_not_ready(start: Start, until: Start) -> None:
    start("--hang", ready_timeout_seconds=3.0)
    state = until("ready", "failed")
    assert state.status == "failed"
    assert "accepts connections, but no generation has come back" in state.cause
    assert find(state.server) is None


def test_a_server_that_dies_while_starting_is_reported_with_its_log_and_exit_code(
    start: Start, context: Context
) -> None:
    start("--die", "7")
    with pytest.raises(HostError, match="exit code 7") as caught:
        await_ready(["main"], context)
    assert caught.value.details["lines"] == ["loading", "the last word before the end"]
    assert caught.value.details["exit_code"] == 7
    assert "the last word before the end" in caught.value.message


def test_a_supervisor_that_is_killed_in_the_middle_of_a_restart_is_named_and_the_next_start_is_whole(
    start: Start, until: Start, context: Context
) -> None:
    start()
    first = until("ready")
    stop_server(context.workdir.server("main"), first, grace_seconds=2.0)
    start("--hang")
    state = records.load(context.workdir.server("main"))
    assert state is not None
    with Pool(1, "restart") as pool:
        waiting = pool.submit(await_ready, ["main"], context)
        assert ending.wait_until(lambda: _server_listens(state.port), 30)
        os.kill(supervisor_of(until("starting")).pid, signal.SIGKILL)
        with pytest.raises(HostError, match="The supervisor of server 'main' was killed") as caught:
            waiting.result(30)
    assert "`inv stop` ends what is left of the server" in caught.value.remedy
    left = records.load(context.workdir.server("main"))
    assert left is not None
    assert records.report(left).problem
    stop_server(context.workdir.server("main"), left, grace_seconds=2.0)
    assert find(left.server) is None
    start()
    assert until("ready", "failed").status == "ready"


def _server_listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_every_start_has_its_own_log_and_current_points_to_the_newest(
    start: Start, until: Start, context: Context
) -> None:
    start("--die", "1")
    until("failed")
    start()
    until("ready")
    paths = context.workdir.server("main")
    assert "the last word" in paths.log(1).read_text()
    assert paths.current_log.resolve() == paths.log(2).resolve()


def test_a_crash_after_ready_restarts_the_server_if_restarts_are_asked_for(
    prepare: Start, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_FIRST_SECONDS", 0.01)
    state = prepare("--die-once", str(tmp_path / "died"), restart=True)
    paths = context.workdir.server("main")

    async def live() -> ServerState:
        life = supervisor.Supervisor(paths, state, SuperviseRequest(name="main", env={**os.environ, MARK: state.mark}))
        running = asyncio.create_task(life.run())
        while not (life.record.state.status == "ready" and life.record.state.restarts):
            assert not running.done()
            await asyncio.sleep(0.05)
        life.stop.set()
        await running
        return life.record.state

    ended = asyncio.run(asyncio.wait_for(live(), 60))
    assert (ended.restarts, ended.start, ended.status) == (1, 2, "stopped")
    assert paths.log(1).exists()
    assert paths.log(2).exists()


def test_a_server_that_never_was_ready_is_not_restarted(start: Start, until: Start) -> None:
    start("--die", "1", restart=True)
    state = until("failed")
    assert (state.restarts, state.restart_at) == (0, None)


def test_backoff_grows_and_is_capped() -> None:
    pauses = [supervisor.backoff_seconds(failures) for failures in range(1, 12)]
    assert pauses[:3] == [5.0, 10.0, 20.0]
    assert pauses[-1] == supervisor.BACKOFF_CAP_SECONDS
    assert pauses == sorted(pauses)


def test_secrets_reach_the_server_and_no_file(prepare: Start, context: Context, until: Start, tmp_path: Path) -> None:
    from remote.servers.lifecycle.detach import start_supervisor

    state = prepare()
    order = SuperviseRequest(name="main", env={**os.environ, MARK: state.mark, "HF_TOKEN": "hf_unspeakable"})
    start_supervisor(state, order, context)
    ready = until("ready")
    assert psutil.Process(server_of(ready).pid).environ()["HF_TOKEN"] == "hf_unspeakable"
    files = [file for file in context.workdir.root.rglob("*") if file.is_file()]
    assert not [file for file in files if b"hf_unspeakable" in file.read_bytes()]
    assert records.load(context.workdir.server("main")) == ready


def test_a_dead_rank_ends_a_server_that_would_go_on(start: Start, until: Start, tmp_path: Path) -> None:
    start("--rank", str(tmp_path / "rank"))
    ready = until("ready")
    pid = int((tmp_path / "rank").read_text())
    os.kill(pid, signal.SIGKILL)
    ended = until("failed")
    assert f"(pid {pid}) was killed by SIGKILL" in ended.cause
    assert ending.wait_until(lambda: find(ready.server) is None, 10)
