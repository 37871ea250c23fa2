"""`inv export`: a destination's shards in the layout of a trainer, written by the data verbs."""

from __future__ import annotations

from collections.abc import Callable

from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from remote.messages.envelope import Progress
from remote.messages.export import ExportRequest, ExportResult


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
