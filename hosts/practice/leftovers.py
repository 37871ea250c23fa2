"""Finds and ends processes that Roost's commands left on a practice host, by Roost's state files. Laptop's side.

Called by `fleet.py`. Needs no SSH, because the host is this machine, so a fleet whose sshd was killed can be ended too.
Ends only processes that the state files name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from hosts.errors import HostError, RoostError
from hosts.inventory.model import Host
from hosts.practice import processes
from hosts.transport.local import LocalBackend
from remote.shared.messages.server import ProcessRef, StopRequest, StopResult
from remote.shared.paths import Workdir

STOP_SECONDS = 90.0
EXTRACTOR_GRACE_SECONDS = 20.0


@dataclass(frozen=True)
class Running:
    """A living process of a practice host's workdir."""

    kind: Literal["server", "extractor", "recorder"]
    name: str
    process: ProcessRef


class _Processes(BaseModel):
    """The part of a server's or an extractor's `state.json` that names processes."""

    supervisor: ProcessRef | None = None
    server: ProcessRef | None = None
    process: ProcessRef | None = None


def running_on(workdir: Path) -> list[Running]:
    """Return the running servers, extractors and recorder that this workdir's state files name."""
    place = Workdir(workdir)
    servers = [
        Running("server", state.parent.name, ref)
        for state in sorted(place.servers.glob("*/state.json"))
        for ref in _living(state, "server", "supervisor")
    ]
    extractors = [
        Running("extractor", state.parent.name, ref)
        for state in sorted(place.runs.glob("*/state.json"))
        for ref in _living(state, "process")
    ]
    recorders = [Running("recorder", "of histories", ref) for ref in _living(place.recorder.lock, "process")]
    return servers + extractors + recorders


def end_running(workdir: Path, python: Path) -> list[str]:
    """End extractors and the recorder, then the servers by the `stop` verb; return one sentence for each process.

    Raises HostError if one of them does not end.
    """
    before = running_on(workdir)
    detached = [one for one in before if one.kind != "server"]
    living = [process for one in detached if (process := processes.find(one.process))]
    processes.end(living, EXTRACTOR_GRACE_SECONDS)
    if any(one.kind == "server" for one in before):
        _stop_servers(workdir, python)
    left = running_on(workdir)
    if left:
        raise HostError(
            f"{left[0].kind} {left[0].name} (pid {left[0].process.pid}) of {workdir} did not end.",
            remedy="End it by hand and try again.",
        )
    return sorted({f"ended {one.kind} {one.name}" for one in before})


def _stop_servers(workdir: Path, python: Path) -> None:
    host = Host(name="practice", connection="local", workdir=str(workdir), python=str(python), gpus=0, tp=1)
    try:
        LocalBackend(host).call("stop", StopRequest(), StopResult, deadline=STOP_SECONDS)
    except RoostError as error:
        raise HostError(f"The servers of {workdir} could not be stopped: {error}") from error


def _living(state: Path, *keys: str) -> list[ProcessRef]:
    """Return the first running process of the file, as a list; [] if none runs or the file cannot be read."""
    try:
        recorded = _Processes.model_validate_json(state.read_bytes())
    except (OSError, ValidationError):
        return []
    refs: list[ProcessRef | None] = [getattr(recorded, key) for key in keys]
    return [ref for ref in refs if ref is not None and processes.find(ref) is not None][:1]
