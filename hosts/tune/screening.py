"""Stage 1 of a search: the collectives' microbenchmark for every setting, by successive halving. Laptop's side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hosts.errors import HostError
from hosts.inventory.servers import find_mode, gpu_ordinals
from hosts.transport.backend import Backend
from hosts.tune.grid import Setting, applied
from hosts.tune.record import Screened, TuneRecord
from hosts.tune.score import speedup, tokens
from hosts.tune.search import BASELINE_EVERY, KEPT_SHARE, MOST_ROUNDS, Plan
from remote.shared.messages.server import ServerSpec
from remote.shared.messages.tune import ScreenRequest, ScreenResult

FIRST_REPETITIONS = 3
OVERHEAD_SECONDS = 120.0


Say = Callable[[str], None]


class Screening:
    """Runs the rounds on one host; every result is recorded before the next setting is tried."""

    def __init__(
        self, backend: Backend, root: Path, plan: Plan, spec: ServerSpec, record: TuneRecord, say: Say
    ) -> None:
        self._backend, self._root, self._plan, self._spec = backend, root, plan, spec
        self._record, self._say = record, say
        self._since_baseline = BASELINE_EVERY
        """A resumed search begins with a new baseline."""

    def best(self, settings: list[Setting]) -> list[Setting]:
        """Return the current setting (`settings[0]`) and the `plan.confirm` fastest others.

        Raises HostError if the current setting's collectives do not run.
        """
        now, left = settings[0], settings[1:]
        for round_number in range(MOST_ROUNDS):
            scores = {setting.key: self._score(setting, now, round_number) for setting in left}
            ranked = sorted(left, key=lambda setting: -scores[setting.key])
            alive = [setting for setting in ranked if scores[setting.key] > 0]
            if len(alive) <= self._plan.confirm or round_number == MOST_ROUNDS - 1:
                return [now, *alive[: self._plan.confirm]]
            left = alive[: max(self._plan.confirm, int(len(alive) * KEPT_SHARE))]
            self._since_baseline = BASELINE_EVERY
        raise AssertionError("the last round returns")

    def _score(self, setting: Setting, now: Setting, round_number: int) -> float:
        """Return each setting's speed in this round relative to the current one, measured unless it is recorded."""
        entry = self._record.entry(setting)
        if len(entry.screened) <= round_number:
            repetitions = FIRST_REPETITIONS << round_number
            baseline = self._baseline(now, repetitions)
            result = self._measure(setting, repetitions)
            entry.screened.append(Screened(result=result, baseline=baseline))
            self._record.save(self._root)
            self._since_baseline += 1
        screened = entry.screened[round_number]
        score = speedup(screened.result, self._record.baselines[screened.baseline])
        result = screened.result
        outcome = f"{score:.2f} x the current speed" if score else f"{result.status}: {result.cause}"
        self._say(f"round {round_number + 1}: {setting.key}: {outcome}")
        return score

    def _baseline(self, now: Setting, repetitions: int) -> int:
        """Return the index of the current setting's latest measurement, repeated after `BASELINE_EVERY` others."""
        if self._since_baseline >= BASELINE_EVERY:
            result = self._measure(now, repetitions)
            if result.status != "ok":
                raise HostError(
                    f"The collectives do not run under the current setting ({now.key}), so nothing can be compared "
                    f"with it: {result.cause}",
                    remedy="Correct `nccl`, `gpus` or `tp` in the inventory first.",
                )
            self._record.baselines.append(result)
            self._record.save(self._root)
            self._since_baseline = 0
        return len(self._record.baselines) - 1

    def _measure(self, setting: Setting, repetitions: int) -> ScreenResult:
        changed = applied(self._backend.host, self._plan.mode, setting)
        request = ScreenRequest(
            env={**changed.env, **changed.nccl, **find_mode(changed, self._plan.mode).env},
            gpus=gpu_ordinals(self._spec),
            ranks=self._spec.tp,
            model=self._spec.model,
            tokens=tokens(self._plan.goal),
            repetitions=repetitions,
            deadline_seconds=self._plan.deadline_seconds,
        )
        patience = self._plan.deadline_seconds + OVERHEAD_SECONDS
        return self._backend.call("screen", request, ScreenResult, deadline=patience)
