"""A fleet that a test moves by hand, served by the real server on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import uvicorn

from hosts.errors import HostUnreachableError
from hosts.series.view import FleetView, HostView
from hosts.web.app import metrics_app, page_app
from hosts.web.serve import listen, serve
from remote.shared.messages.extract import Counts, ExtractorState
from remote.shared.messages.history import Event, Glance, GpuReading, Reading, RunReading, ServerReading

TOKEN = "a-token-of-22-letters-"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"


def glance(done: int, word: str = "running", rate: float = 1000.0) -> Glance:
    counts = Counts(assigned=100, done=done, tokens_assigned=10_000, tokens_done=100 * done, bytes_done=done)
    state = ExtractorState(
        run="kimi-1", epoch=1, status="running", updated_at=time.time(), tokens_per_second=rate, counts=counts
    )
    run = RunReading(
        run="kimi-1", alive=True, word=word, state=state, disk_free_bytes=5 << 40, disk_total_bytes=9 << 40
    )
    server = ServerReading(name="main", mode="extract", status="ready", alive=True, queued=3)
    gpu = GpuReading(index=0, use_percent=97.0, memory_bytes=70e9, total_bytes=80e9, watts=600, celsius=61)
    reading = Reading(at=time.time(), runs=[run], servers=[server], gpus=[gpu], ram_free_bytes=9e9)
    began = Event(at=time.time(), kind="started", subject="run kimi-1", text=f"began {HOSTILE}")
    return Glance(reading=reading, events=[began])


def host(name: str, done: int = 10, **more: Any) -> HostView:
    now = time.time()
    values = {"glance": glance(done), "heard_at": now, "rates": ((now - 1, 900.0), (now, 1000.0)), **more}
    return HostView(name=name, cost_per_hour=24.0, **values)


def lost(name: str) -> HostView:
    return replace(host(name), error=HostUnreachableError(f"{name} does not answer {HOSTILE}"), lost_at=time.time())


@dataclass
class Moving:
    """What the server shows; tests replace `hosts`."""

    hosts: list[HostView] = field(default_factory=lambda: [host("gpu1"), host("gpu2")])
    fault: BaseException | None = None
    asked: list[str] = field(default_factory=list)

    def view(self) -> FleetView:
        if self.fault is not None:
            raise self.fault
        return FleetView(time.time(), self.hosts)

    def tail(self, name: str) -> list[str]:
        self.asked.append(name)
        return [f"the log of {name}", HOSTILE]


class Served:
    """A running server of one application."""

    def __init__(self, moving: Moving, servers: list[uvicorn.Server], port: int, metrics: bool) -> None:
        self._moving, self._metrics = moving, metrics
        self._sock = listen("127.0.0.1", port, "--port")
        self.port = int(self._sock.getsockname()[1])
        self.ended = threading.Event()
        self.error: BaseException | None = None
        before = len(servers)
        threading.Thread(target=self._run, daemon=True).start()
        until(lambda: len(servers) > before and servers[-1].started)
        self._server = servers[-1]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def page(self) -> str:
        return f"{self.address}/{TOKEN}/"

    def end(self) -> None:
        self._server.should_exit = True
        assert self.ended.wait(30)

    def _run(self) -> None:
        def app(view: Callable[[], FleetView]) -> Any:
            return metrics_app(view) if self._metrics else page_app(view, self._moving.tail, TOKEN)

        try:
            serve(app, self._moving.view, self._sock)
        except BaseException as error:
            self.error = error
        finally:
            self._sock.close()
            self.ended.set()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def moving() -> Moving:
    return Moving()


@pytest.fixture
def start(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    """`start()` serves the page, `start(metrics=True)` the metrics; all end with the test."""
    servers: list[uvicorn.Server] = []
    create = uvicorn.Server.__init__

    def noted(self: uvicorn.Server, config: uvicorn.Config) -> None:
        create(self, config)
        servers.append(self)

    monkeypatch.setattr(uvicorn.Server, "__init__", noted)
    running: list[Served] = []

    def begin(port: int = 0, *, metrics: bool = False) -> Served:
        running.append(Served(moving, servers, port, metrics))
        return running[-1]

    yield begin
    for served in running:
        served.end()
