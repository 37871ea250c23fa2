"""`inv prepare` and `inv inspect`: make and show datasets with the data verbs, on the laptop or on a host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import BaseModel

from hosts.errors import ProtocolError, UsageError
from hosts.inventory.model import Host, Inventory
from hosts.transport.backend import Backend
from remote.shared.messages.dataset import (
    InspectedRecord,
    InspectRequest,
    InspectResult,
    Manifest,
    OwnKey,
    PrepareRequest,
    PrepareResult,
)
from remote.shared.messages.envelope import Progress

_OWN_KEYS = get_args(OwnKey)
OnProgress = Callable[[Host, Progress], None]


def tokenizer_of(inventory: Inventory, host: Host, given: str | None) -> str | None:
    """Return the tokenizer's folder: `given`, else the `model` of the host that runs the verb.

    On the laptop without a `local` model, return the model path that all hosts and clusters share if it exists here,
    else None.
    """
    if given:
        return local_path(host, given) if Path(given).expanduser().exists() else given
    if host.model:
        return host.model
    shared = {other.model for other in (*inventory.hosts.values(), *inventory.cluster_hosts.values()) if other.model}
    if len(shared) == 1 and Path(str(*shared)).expanduser().is_dir():
        return str(*shared)
    return None


def local_path(host: Host, path: str) -> str:
    """Return a path for the verb: absolute on the laptop, unchanged on a host or in a bucket."""
    if "://" in path:
        return path
    return str(Path(path).expanduser().absolute()) if host.connection == "local" else path


def own_keys(text: str, *, prompts: bool = False) -> dict[OwnKey, str]:
    """Return `prompt=ask,answer=reply` as a mapping; raises UsageError for an unknown or a missing name."""
    keys: dict[OwnKey, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        what, equals, key = (part.strip() for part in pair.partition("="))
        if not equals or not key or what not in _OWN_KEYS or what in keys:
            raise UsageError(
                f"--keys has {pair!r}; it takes pairs such as prompt=ask,answer=reply.",
                remedy=f"Name each of {', '.join(_OWN_KEYS)} at most once.",
            )
        keys[cast(OwnKey, what)] = key
    needed = {"prompt"} if prompts else {"prompt", "answer"}
    if keys and not ("messages" in keys or needed <= keys.keys()):
        raise UsageError(f"--keys {text} names neither messages nor both prompt and answer.")
    return keys


def prepare(backend: Backend, request: PrepareRequest, on_progress: OnProgress | None = None) -> PrepareResult:
    """Make the dataset, without a deadline."""
    return backend.call(
        "prepare",
        request,
        PrepareResult,
        deadline=None,
        on_progress=None if on_progress is None else lambda line: on_progress(backend.host, line),
    )


class Inspected(BaseModel):
    """Some records of a dataset, and its manifest."""

    manifest: Manifest
    records: list[InspectedRecord]


def inspect(backend: Backend, request: InspectRequest) -> Inspected:
    """Return the requested records of a dataset."""
    records: list[InspectedRecord] = []

    def on_item(value: dict[str, Any]) -> None:
        if len(records) == len(request.indices):
            raise ProtocolError(f"The host sent more than the {len(request.indices)} requested records.")
        records.append(InspectedRecord.model_validate(value))

    result = backend.call("inspect", request, InspectResult, deadline=None, on_item=on_item)
    return Inspected(manifest=result.manifest, records=records)
