"""`inv prepare` and `inv inspect`: datasets, made and shown by the data verbs on the laptop or on a host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from remote.messages.dataset import (
    InspectedRecord,
    InspectRequest,
    InspectResult,
    PrepareRequest,
    PrepareResult,
)
from remote.messages.envelope import Progress

OnProgress = Callable[[Host, Progress], None]


def where(fleet: Fleet) -> Backend:
    """The host that a data task was given, or the laptop; raises UsageError for more than one."""
    if len(fleet.hosts) > 1:
        names = ", ".join(host.name for host in fleet.hosts)
        raise UsageError(f"A dataset is made in one place, and {names} were named.", remedy="Name one with --host.")
    return fleet.backend(fleet.hosts[0]) if fleet.hosts else fleet.local


def tokenizer_of(fleet: Fleet, backend: Backend, given: str | None) -> str:
    """The tokenizer's folder: the one given, else the model of the place where the verb runs.

    On the laptop without a `local` model, the model path that all hosts share, if it exists here too.
    """
    if given:
        return (
            str(Path(given).expanduser().absolute())
            if backend is fleet.local and Path(given).expanduser().exists()
            else given
        )
    if backend.host.model:
        return backend.host.model
    shared = {host.model for host in fleet.inventory.hosts.values() if host.model}
    if len(shared) == 1 and Path(str(*shared)).expanduser().is_dir():
        return str(*shared)
    raise UsageError(
        "No tokenizer is known for this dataset.",
        remedy="Give its folder with --tokenizer, set `model` under `local:`, or run where the model is with --host.",
    )


def local_paths(fleet: Fleet, backend: Backend, paths: list[str]) -> list[str]:
    """Paths as the verb should read them: on the laptop made absolute, on a host as typed."""
    if backend is not fleet.local:
        return paths
    return [str(Path(path).expanduser().absolute()) for path in paths]


def prepare(backend: Backend, request: PrepareRequest, on_progress: OnProgress | None = None) -> PrepareResult:
    """Make the dataset; takes as long as it takes."""
    return backend.call(
        "prepare",
        request,
        PrepareResult,
        deadline=None,
        on_progress=None if on_progress is None else lambda line: on_progress(backend.host, line),
    )


def inspect(backend: Backend, request: InspectRequest, on_record: Callable[[InspectedRecord], None]) -> InspectResult:
    """Read records of a dataset, each handed to `on_record` as it comes."""

    def on_item(value: dict[str, Any]) -> None:
        on_record(InspectedRecord.model_validate(value))

    return backend.call("inspect", request, InspectResult, deadline=None, on_item=on_item)
