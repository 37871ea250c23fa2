"""Real servers' stage of a search, and `bench --mode`: what is tried, and that the host ends as it began.

A backend stands for a host with one server and remembers what it was asked.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hosts.bench.serving import OneServer, each_to_its_end
from hosts.errors import ConnectionLostError, HostError, RoostError, UsageError
from hosts.fleet import Fleet
from hosts.inventory.model import Host, Inventory, Mode
from hosts.transport.backend import Backend
from hosts.transport.process import Process
from hosts.tune.confirming import Confirming
from hosts.tune.grid import Setting, current
from hosts.tune.record import Basis, Found, TuneRecord, load
from hosts.tune.search import Plan
from remote.shared.messages.bench import BenchRequest, BenchResult, Measurement
from remote.shared.messages.server import (
    ServeRequest,
    ServeResult,
    ServerReport,
    ServersResult,
    ServerState,
    StopResult,
)

PLAN = Plan(mode="serve", goal="decode", confirm=2, repetitions=3)
LL, SIMPLE = Setting(env={"NCCL_PROTO": "LL"}), Setting(env={"NCCL_PROTO": "Simple"})
SPEEDS = {"LL": 60.0, "Simple": 90.0, "LL128": 70.0}


@pytest.fixture
def host() -> Host:
    return Host(
        name="gpu1",
        model="/m",
        layers=[1],
        modes={"serve": Mode(), "extract": Mode(capture=True)},
        nccl={"NCCL_PROTO": "LL"},
        tune={"NCCL_PROTO": list(SPEEDS)},
    )


class OneServerHost(Backend):
    """`runs` is (mode, protocol) of its server, None where none runs; `trouble` may raise for a start."""

    def __init__(
        self, host: Host, runs: tuple[str, str] | None, trouble: Callable[[str], None] = lambda protocol: None
    ) -> None:
        super().__init__(host)
        self.runs, self.trouble = runs, trouble
        self.starts: list[tuple[str, str]] = []
        self.waited: list[bool] = []
        self.has_record = runs is not None

    def open(self, argv: list[str]) -> Process:
        raise NotImplementedError

    def close(self) -> None:
        return

    def call(self, verb: str, request: Any, result: Any, **_: Any) -> Any:
        return getattr(self, f"_{verb}")(request)

    def _servers(self, request: object) -> ServersResult:
        if not self.has_record:
            return ServersResult(servers=[])
        mode = self.runs[0] if self.runs else "serve"
        spec = {"name": "main", "mode": mode, "model": "/m", "port": 8000}
        state = ServerState.model_validate({**spec, "status": "ready", "command": [], "log": "", "spec": spec})
        return ServersResult(servers=[ServerReport(state=state, alive=self.runs is not None, supervised=True)])

    def _serve(self, request: ServeRequest) -> ServeResult:
        (spec,) = request.servers
        self.waited.append(request.wait_for_lock)
        wanted = (spec.mode, spec.env["NCCL_PROTO"])
        if wanted != self.runs:
            self.runs, self.has_record = None, True
            self.trouble(wanted[1])
            self.runs = wanted
            self.starts.append(wanted)
        return ServeResult()

    def _stop(self, request: object) -> StopResult:
        self.runs = None
        return StopResult()

    def _bench(self, request: BenchRequest) -> BenchResult:
        assert self.runs is not None
        speed = SPEEDS[self.runs[1]]
        values = [speed + 0.1 * number for number in range(request.repetitions)]
        return BenchResult(
            server="main",
            mode=self.runs[0],
            taken_at=0,
            seconds=1,
            sglang="0.5.23",
            torch="2.13.0",
            model="/m",
            command=[],
            env={},
            capture="none",
            payload="",
            request=request,
            measurements=[Measurement(name="decode", unit="tokens/s", better="higher", values=values)],
        )


def record_of(root: Path, host: Host) -> TuneRecord:
    now = current(host, "serve")
    return load(root, "gpu1", "serve", "decode", Basis(grid={}, now=now, model="/m", tp=8, gpus=[]), fresh=False)


def confirm(backend: Backend, root: Path) -> TuneRecord:
    record = record_of(root, backend.host)
    Confirming(backend, root, PLAN, "main", record, lambda text: None).run([LL, SIMPLE, LL])
    return record


@pytest.mark.parametrize("runs", [None, ("serve", "LL"), ("extract", "LL")])
def test_the_host_ends_as_it_began(host: Host, tmp_path: Path, runs: tuple[str, str] | None) -> None:
    backend = OneServerHost(host, runs)
    record = confirm(backend, tmp_path)
    assert backend.runs == runs
    assert {key: len(entry.trials) for key, entry in record.entries.items()} == {LL.key: 2, SIMPLE.key: 1}
    assert record_of(tmp_path, host).found is None


@pytest.mark.parametrize("error", [HostError("Server 'main' died: NCCL error."), UsageError("SGLang has no --x.")])
def test_a_setting_whose_server_fails_is_recorded_and_not_tried_again(
    host: Host, tmp_path: Path, error: RoostError
) -> None:
    def trouble(protocol: str) -> None:
        if protocol == "Simple":
            raise error

    backend = OneServerHost(host, None, trouble)
    assert confirm(backend, tmp_path).entries[SIMPLE.key].trials[0].status == error.message
    again = OneServerHost(host, None)
    confirm(again, tmp_path)
    assert (backend.runs, again.starts) == (None, [])


def test_an_interrupted_search_continues_and_restores_the_earlier_server(host: Host, tmp_path: Path) -> None:
    def cut(protocol: str) -> None:
        if protocol == "Simple" or backend.starts:
            raise ConnectionLostError("The connection broke in the middle of the call.")

    backend = OneServerHost(host, ("extract", "LL"), cut)
    with pytest.raises(ConnectionLostError):
        confirm(backend, tmp_path)
    assert record_of(tmp_path, host).found == Found(mode="extract")
    later = OneServerHost(host, ("serve", "Simple"))
    record = confirm(later, tmp_path)
    assert len(record.entries[LL.key].trials) == 2
    assert later.starts == [("serve", "LL"), ("extract", "LL")]
    assert backend.waited[0] is False
    assert later.waited == [True, False, True]
    assert later.runs == ("extract", "LL")


def test_a_mode_that_does_not_start_ends_the_search_and_is_no_verdict(host: Host, tmp_path: Path) -> None:
    def trouble(protocol: str) -> None:
        raise HostError("Server 'main' died: out of memory.")

    backend = OneServerHost(host, None, trouble)
    with pytest.raises(HostError, match=r"does not run under the current setting .* died: out of memory\."):
        confirm(backend, tmp_path)
    assert backend.runs is None
    assert not record_of(tmp_path, host).entries[LL.key].trials


def test_another_operators_command_says_nothing_about_a_setting(host: Host, tmp_path: Path) -> None:
    def trouble(protocol: str) -> None:
        if protocol == "Simple":
            error = HostError("ann@desk has been at `serve` for 2 min and holds this host's lock.")
            error.kind = "locked"
            raise error

    backend = OneServerHost(host, None, trouble)
    with pytest.raises(HostError, match="ann@desk"):
        confirm(backend, tmp_path)
    assert not record_of(tmp_path, host).entries[SIMPLE.key].trials


def test_a_mode_of_another_inventory_is_left_alone(host: Host, tmp_path: Path) -> None:
    backend = OneServerHost(host, ("theirs", "LL"))
    with pytest.raises(HostError, match="mode 'theirs', which this inventory does not have"):
        confirm(backend, tmp_path)
    assert backend.runs == ("theirs", "LL")


@pytest.mark.parametrize("runs", [None, ("extract", "LL"), ("serve", "Simple")])
def test_a_server_serves_in_another_mode_for_a_block(host: Host, runs: tuple[str, str] | None) -> None:
    backend = OneServerHost(host, runs)
    with OneServer(backend, "main").serving("serve"):
        assert backend.runs == (runs if runs and runs[0] == "serve" else ("serve", "LL"))
    assert backend.runs == runs


def test_a_mode_that_cannot_start_is_reported_and_the_server_is_restored(host: Host) -> None:
    def trouble(protocol: str) -> None:
        if not failed:
            failed.append(protocol)
            raise HostError("Server 'main' did not start: CUDA out of memory.")

    failed: list[str] = []
    backend = OneServerHost(host, ("extract", "LL"), trouble)
    with (
        pytest.raises(HostError, match=r"did not start: CUDA out of memory\."),
        OneServer(backend, "main").serving("serve"),
    ):
        pytest.fail("it does not serve")
    assert (backend.runs, backend.starts) == (("extract", "LL"), [("extract", "LL")])


def test_an_interrupt_waits_until_every_server_is_restored(host: Host, tmp_path: Path) -> None:
    fleet = Fleet(Inventory(path=tmp_path, hosts={"gpu1": host}, local=host), [host])
    backend = OneServerHost(host, ("extract", "LL"))
    fleet._backends = {"gpu1": backend}
    said: list[str] = []

    def action(own: Backend) -> None:
        with OneServer(own, "main").serving("serve"):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        each_to_its_end(fleet, action, said.append)
    assert backend.runs == ("extract", "LL")
    assert "restored" in said[0]
