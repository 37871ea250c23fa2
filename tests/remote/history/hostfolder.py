"""A working directory with the files of extractors and supervisors, written by hand."""

from __future__ import annotations

import io
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from remote.context import Context
from remote.report import Report
from remote.servers.lifecycle import records
from remote.shared.files import write_whole
from remote.shared.messages.extract import Control, ExtractorState
from remote.shared.messages.server import ServerSpec, ServerState
from remote.shared.paths import RunPaths, Workdir
from remote.shared.processes import reference


@dataclass
class HostFolder:
    """One host."""

    root: Path
    said: io.StringIO = field(default_factory=io.StringIO)

    @property
    def context(self) -> Context:
        return Context(Workdir(self.root), Report(self.said))

    @property
    def workdir(self) -> Workdir:
        return Workdir(self.root)

    def run(self, name: str = "trial", **values: object) -> RunPaths:
        """The run's state file as an extractor writes it."""
        paths = self.workdir.run(name)
        paths.shards.mkdir(parents=True, exist_ok=True)
        counts = {"assigned": 100, "tokens_assigned": 9000}
        given: dict[str, object] = {"run": name, "epoch": 1, "status": "running", "started_at": 5.0}
        given |= {"updated_at": time.time(), "counts": {**counts, **dict(values.pop("counts", {}))}, **values}  # type: ignore[call-overload]
        write_whole(paths.state, ExtractorState.model_validate(given).model_dump_json().encode())
        return paths

    def wish(self, name: str, action: str) -> None:
        """What a person asked the extractor for."""
        control = Control.model_validate({"action": action, "at": time.time()})
        write_whole(self.workdir.run(name).control, control.model_dump_json().encode())

    def server(self, name: str = "main", **values: object) -> ServerState:
        """The server's record as a supervisor writes it; this very process plays server and supervisor."""
        given: dict[str, object] = {
            "name": name, "mode": "extract", "status": "ready", "port": 1, "model": "m", "command": ["sglang"],
            "log": str(self.root / f"{name}.log"), "spec": ServerSpec(model="m"),
            "server": reference(os.getpid()), "supervisor": reference(os.getpid()),
        }  # fmt: skip
        state = ServerState.model_validate({**given, **values})
        records.save(self.workdir.server(name), state)
        return state
