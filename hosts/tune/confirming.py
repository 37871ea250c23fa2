"""Stage 2: the best few settings under real servers, measured as a user would feel them. Laptop's side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hosts.errors import ConnectionLostError, HostError
from hosts.inventory.model import Host
from hosts.inventory.servers import server_specs
from hosts.transport.backend import Backend
from hosts.tune.grid import Setting, applied
from hosts.tune.plan import Plan
from hosts.tune.record import Trial, TuneRecord
from hosts.tune.score import Goal
from remote.messages.bench import BenchRequest, BenchResult, Profile
from remote.messages.server import (
    ServeRequest,
    ServeResult,
    ServersRequest,
    ServersResult,
    StopRequest,
    StopResult,
)

PROFILES: dict[Goal, list[Profile]] = {"decode": ["single"], "prefill": ["prefill"]}
SERVE_OVERHEAD_SECONDS = 900.0
BENCH_OVERHEAD_SECONDS = 120.0
STOP_SECONDS = 330.0

Say = Callable[[str], None]


class Confirming:
    """Server restarts on one host; a setting whose server fails is a record and is not tried again."""

    def __init__(self, backend: Backend, root: Path, plan: Plan, server: str, record: TuneRecord, say: Say) -> None:
        self._backend, self._root, self._plan, self._server = backend, root, plan, server
        self._record, self._say = record, say

    def run(self, settings: list[Setting]) -> None:
        """Try each in turn (one that comes twice is tried twice), then leave the server as it was found."""
        before = self._running_mode()
        seen: dict[str, int] = {}
        try:
            for setting in settings:
                seen[setting.key] = seen.get(setting.key, 0) + 1
                entry = self._record.entry(setting)
                if len(entry.trials) < seen[setting.key]:
                    entry.trials.append(self._try(setting))
                    self._record.save(self._root)
                    self._say(f"server under {setting.key}: {entry.trials[-1].status}")
        finally:
            self._restore(before)

    def _try(self, setting: Setting) -> Trial:
        request = BenchRequest(
            server=self._server, profiles=PROFILES[self._plan.goal], repetitions=self._plan.repetitions
        )
        patience = request.deadline_seconds + BENCH_OVERHEAD_SECONDS
        try:
            self._serve(applied(self._backend.host, self._plan.mode, setting), self._plan.mode)
            return Trial(status="ok", result=self._backend.call("bench", request, BenchResult, deadline=patience))
        except ConnectionLostError:
            raise
        except HostError as error:
            return Trial(status=error.message)

    def _serve(self, host: Host, mode: str) -> None:
        specs = [spec for spec in server_specs(host, mode) if spec.name == self._server]
        patience = host.ready_timeout + SERVE_OVERHEAD_SECONDS
        self._backend.call("serve", ServeRequest(servers=specs, replace=True), ServeResult, deadline=patience)

    def _running_mode(self) -> str | None:
        """The mode that the server runs in now; None where it does not run."""
        reports = self._backend.call("servers", ServersRequest(), ServersResult).servers
        return next((each.state.mode for each in reports if each.alive and each.state.name == self._server), None)

    def _restore(self, mode: str | None) -> None:
        """The same mode again under the inventory's own settings, or no server where there was none."""
        if mode is not None:
            self._serve(self._backend.host, mode)
            return
        known = self._backend.call("servers", ServersRequest(), ServersResult).servers
        if any(each.state.name == self._server for each in known):
            self._backend.call("stop", StopRequest(names=[self._server]), StopResult, deadline=STOP_SECONDS)
