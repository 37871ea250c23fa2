"""`inv export`, `inv pull --export`: a destination's shards in the layout of a trainer, written by the data verbs."""

from __future__ import annotations

from collections.abc import Callable

from hosts.commands.prepare import local_path
from hosts.fleet import Fleet, fleet_of
from hosts.inventory.model import Host
from hosts.pull.direct import Place, place_of
from hosts.transport.backend import Backend
from remote.shared.messages.envelope import Progress
from remote.shared.messages.export import ExportRequest, ExportResult


def export(
    backend: Backend, request: ExportRequest, on_progress: Callable[[Host, Progress], None] | None = None
) -> ExportResult:
    """Write the export where the destination is; takes as long as it takes."""
    return backend.call(
        "export",
        request,
        ExportResult,
        deadline=None,
        on_progress=None if on_progress is None else lambda line: on_progress(backend.host, line),
    )


def export_pulled(fleet: Fleet, to: str, out: str, on_progress: Callable[[Host, Progress], None]) -> ExportResult:
    """Write what was pulled to `to` (a folder here, or HOST:FOLDER) to `out`, in the inventory's `format`.

    Only SpecForge's layout needs the model, for its last norm: the inventory's `model` of that place.
    """
    place = place_of(fleet, to) or Place(fleet.inventory.local, to)
    host = place.host
    request = ExportRequest(
        folder=local_path(host, place.folder),
        out=local_path(host, out),
        format=host.format,
        model=host.model or "" if host.format == "specforge" else "",
    )
    with fleet_of(fleet.inventory, [host]) as there:
        return export(there.backend(host), request, on_progress)
