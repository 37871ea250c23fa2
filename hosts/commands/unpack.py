"""`inv compress` and `inv unpack`: shards kept compressed on their hosts, and made plain again anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from remote.shared.messages.codec import CompressRequest, CompressResult, UnpackRequest, UnpackResult
from remote.shared.messages.envelope import Progress

OnProgress = Callable[[Host, Progress], None]


def unpack(backend: Backend, request: UnpackRequest, on_progress: OnProgress | None = None) -> UnpackResult:
    """Run the verb where `backend` is; on the laptop, relative paths are those of this folder."""
    if backend.host.connection == "local":
        request = request.model_copy(
            update={
                "paths": [str(Path(path).expanduser().absolute()) for path in request.paths],
                "out": str(Path(request.out).expanduser().absolute()) if request.out else "",
            }
        )
    host = backend.host
    notify = None if on_progress is None else lambda line: on_progress(host, line)
    return backend.call("unpack", request, UnpackResult, deadline=None, on_progress=notify)


def compress(
    fleet: Fleet, run: str, on_progress: OnProgress | None = None, *, dry_run: bool = False
) -> list[Outcome[CompressResult]]:
    """Compress a run's finished shards where they lie, on every host at once; the ledgers know."""
    request = CompressRequest(run=run, dry_run=dry_run)
    return fleet.call("compress", request, CompressResult, deadline=None, on_progress=on_progress)
