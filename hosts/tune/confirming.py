"""Stage 2 of a search: the best settings under real servers, measured with requests. Laptop's side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from hosts.bench.serving import OneServer
from hosts.errors import HostError, RoostError
from hosts.transport.backend import Backend
from hosts.tune.grid import Setting, applied
from hosts.tune.record import Found, Trial, TuneRecord
from hosts.tune.score import Goal
from hosts.tune.search import Plan
from remote.shared.messages.bench import BenchRequest, BenchResult, Profile

PROFILES: dict[Goal, list[Profile]] = {"decode": ["single"], "prefill": ["prefill"]}
BENCH_OVERHEAD_SECONDS = 120.0
FIRST_DEADLINE_SECONDS = 3600.0
SLOWEST = 5.0
LOCKED = "locked"
"""Kind of the error for another operator's command on the host; the error says nothing about a setting."""

Say = Callable[[str], None]


class Confirming:
    """Measures settings with real servers on one host; a setting whose server fails is recorded and not tried again."""

    def __init__(self, backend: Backend, root: Path, plan: Plan, server: str, record: TuneRecord, say: Say) -> None:
        self._backend, self._root, self._plan = backend, root, plan
        self._server = OneServer(backend, server)
        self._record, self._say = record, say
        self._goes_on = record.found is not None
        """Whether to wait for the host's lock, which the last call of a search that was cut off may still hold."""

    def run(self, settings: list[Setting]) -> None:
        """Try each setting in turn (one that is listed twice is tried twice), then restore the server.

        The first is the current setting. Raises HostError if its server does not start.
        """
        wanted = list(self._missing(settings))
        if not wanted and self._record.found is None:
            return
        if self._record.found is None:
            self._record.found = Found(mode=self._server.mode())
            self._record.save(self._root)
        try:
            for setting in wanted:
                self._confirm(setting, is_first=setting == settings[0])
        finally:
            self._server.put_back(self._record.found.mode)
            self._record.found = None
            self._record.save(self._root)

    def _missing(self, settings: list[Setting]) -> Iterator[Setting]:
        """Return the settings that have fewer recorded trials than entries in the list."""
        seen: dict[str, int] = {}
        for setting in settings:
            seen[setting.key] = seen.get(setting.key, 0) + 1
            if len(self._record.entry(setting).trials) < seen[setting.key]:
                yield setting

    def _confirm(self, setting: Setting, *, is_first: bool) -> None:
        entry = self._record.entry(setting)
        trial = self._try(setting)
        if is_first and trial.result is None and not entry.trials:
            raise HostError(
                f"The server does not run under the current setting ({setting.key}), so nothing can be compared with "
                f"it: {trial.status}",
                remedy=f"Make `inv serve --mode {self._plan.mode}` work first.",
            )
        entry.trials.append(trial)
        self._record.save(self._root)
        self._say(f"server under {setting.key}: {trial.status}")

    def _try(self, setting: Setting) -> Trial:
        request = BenchRequest(
            server=self._server.name,
            profiles=PROFILES[self._plan.goal],
            repetitions=self._plan.repetitions,
            deadline_seconds=self._deadline(),
        )
        patience = request.deadline_seconds + BENCH_OVERHEAD_SECONDS
        try:
            changed = applied(self._backend.host, self._plan.mode, setting)
            wait, self._goes_on = self._goes_on, False
            self._server.serve(changed, self._plan.mode, wait=wait)
            return Trial(status="ok", result=self._backend.call("bench", request, BenchResult, deadline=patience))
        except ConnectionError:  # not the setting's fault; the search continues when the host is back
            raise
        except RoostError as error:  # UsageError: SGLang's parser refuses a value
            if error.kind == LOCKED:
                raise
            return Trial(status=error.message)

    def _deadline(self) -> float:
        """Return the deadline of a measurement in seconds: `SLOWEST` times the fastest one so far, plus an overhead."""
        trials = [trial for entry in self._record.entries.values() for trial in entry.trials]
        known = [trial.result.seconds for trial in trials if trial.result is not None]
        return SLOWEST * min(known) + BENCH_OVERHEAD_SECONDS if known else FIRST_DEADLINE_SECONDS
