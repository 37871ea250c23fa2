"""Fixtures for both sides: tiny models, and a real SGLang server on CPU. Loaded under `.venv` and under `.engine`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hosts.practice.models import tiny_model
from hosts.practice.paths import PracticePaths
from hosts.practice.serving import CpuServer

CLONE = Path(__file__).parents[1]
STARTING = {"pool", "start"}
"""Fixtures that start stand-ins, and extractors or supervisors around them."""


def pytest_configure() -> None:
    """Take Ctrl-C as a terminal gives it, also in a background job that ignores it: what tests start inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses one of them is marked `processes`."""
    for item in items:
        if STARTING.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.processes)


@pytest.fixture(scope="session")
def clone() -> Path:
    """The repository's root."""
    return CLONE


@pytest.fixture(scope="session")
def tiny_model_of() -> Callable[..., Path]:
    """`tiny_model_of("qwen3_moe", layers=6, dtype="float32")` is a model's folder; kept under `.practice/models`."""

    def of(family: str = "deepseek_v3", *, layers: int = 6, dtype: str = "float32") -> Path:
        return tiny_model(CLONE, family, layers=layers, dtype=dtype)

    return of


@pytest.fixture(scope="session")
def tiny_model_path(tiny_model_of: Callable[..., Path]) -> Path:
    """A six-layer DeepSeek-V3 in float32."""
    return tiny_model_of()


@pytest.fixture(scope="module")
def cpu_server(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., CpuServer]]:
    """`cpu_server(model=…, flags=[…], env={…})` is a ready server; one asked for before is given again.

    They end with the module, so that no more than one module's share the two cores.
    """
    running: dict[str, CpuServer] = {}
    python = PracticePaths(CLONE).engine_python

    def serve(
        model: Path = tiny_model_path, flags: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> CpuServer:
        key = repr((model, tuple(flags), env))
        if key not in running:
            log = tmp_path_factory.mktemp("server") / "server.log"
            server = CpuServer(python, model, log, flags=flags, env=env)
            server.start()
            running[key] = server
        return running[key]

    yield serve
    for server in running.values():
        server.stop()
