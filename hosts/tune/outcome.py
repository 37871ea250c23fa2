"""The result of a search: a row for each setting, and a winner that is never slower than the current setting. Pure."""

from __future__ import annotations

import math
import statistics
from typing import Any

from pydantic import BaseModel, Field

from hosts.bench.compare import Comparison, compare
from hosts.inventory.model import Host
from hosts.tune.fragment import fragment
from hosts.tune.grid import Setting
from hosts.tune.record import Entry, Trial, TuneRecord
from hosts.tune.score import Goal, speedup
from hosts.tune.search import Plan
from remote.shared.messages.bench import BenchResult
from remote.shared.messages.tune import ScreenResult


class Row(BaseModel):
    """One setting in the final table."""

    setting: Setting
    screened: float | None
    """Speed of the collectives against the current setting in the last round; None if it did not run."""
    confirmed: list[Comparison] = Field(default_factory=list)
    """The server's speed against the current setting; empty if no server ran."""
    note: str = ""
    """Why the setting was skipped, or which of its values NCCL ignored."""


class Tuned(BaseModel):
    """The result of a search."""

    host: str
    mode: str
    goal: Goal
    rows: list[Row]
    winner: Setting
    is_current: bool
    """Whether the current setting stays, because no other was faster."""
    gain: list[Comparison]
    """The winner's server against the current setting's; empty if that one stays."""
    fragment: dict[str, Any]
    """The mapping to merge into the inventory; empty if the current setting stays."""
    warnings: list[str]
    """NCCL's warnings about values that it ignored or refused."""
    chosen: list[str]
    """Transports, channels and algorithms that NCCL chose under the winner."""
    drift: float = 0.0
    """Spread of the current setting's own measurements: 0.04 means that its fastest was 4 % above its slowest."""


def conclude(host: Host, plan: Plan, now: Setting, record: TuneRecord) -> Tuned:
    """Return the table and the winner, from the record."""
    base = record.entry(now)
    rows = [_row(entry, base, record.baselines) for entry in record.entries.values()]
    best = max((row for row in rows if _is_faster(row)), key=lambda row: _gain(row.confirmed), default=None)
    winner = now if best is None else best.setting
    screened = [*record.baselines, *(each.result for entry in record.entries.values() for each in entry.screened)]
    return Tuned(
        host=host.name,
        mode=plan.mode,
        goal=plan.goal,
        rows=sorted(rows, key=lambda row: (-_gain(row.confirmed), -(row.screened or 0.0))),
        winner=winner,
        is_current=best is None,
        gain=[] if best is None else best.confirmed,
        fragment={} if best is None else fragment(host, plan.mode, winner),
        warnings=list({text: None for result in screened for text in result.chosen.warnings}),
        chosen=_chosen(record, now, winner),
        drift=drift(record.baselines),
    )


def drift(baselines: list[ScreenResult]) -> float:
    """Return the spread of the current setting's own speed over the screening; 0 with fewer than two measurements."""
    speeds = [speedup(each, baselines[0]) for each in baselines]
    return max(speeds) / min(speeds) - 1 if len(speeds) > 1 and min(speeds) > 0 else 0.0


def _row(entry: Entry, base: Entry, baselines: list[ScreenResult]) -> Row:
    results = [each.result for each in entry.screened]
    newest = entry.screened[-1] if entry.screened else None
    score = speedup(newest.result, baselines[newest.baseline]) if newest else float(entry is base and bool(baselines))
    notes = [f"{result.status}: {result.cause}" for result in results if result.status != "ok"]
    notes += [trial.status for trial in entry.trials if trial.result is None]
    notes += [f"NCCL says: {text}" for result in results for text in result.chosen.warnings]
    mine, theirs = pooled(entry.trials), pooled(base.trials)
    confirmed = compare(theirs, mine) if mine is not None and theirs is not None else []
    return Row(setting=entry.setting, screened=score or None, confirmed=confirmed, note=notes[0] if notes else "")


def pooled(trials: list[Trial]) -> BenchResult | None:
    """Return the values of all trials as one result; None if no trial succeeded."""
    results = [trial.result for trial in trials if trial.result is not None]
    if not results:
        return None
    together = results[0].model_copy(deep=True)
    for other in results[1:]:
        for mine, theirs in zip(together.measurements, other.measurements, strict=True):
            mine.values.extend(theirs.values)
    return together


def _is_faster(row: Row) -> bool:
    verdicts = {each.verdict for each in row.confirmed}
    return "faster" in verdicts and "slower" not in verdicts


def _gain(rows: list[Comparison]) -> float:
    """Return the geometric mean of the speed-ups over all quantities; above 1 is faster, 1 if there are none."""
    if not rows:
        return 1.0
    return math.exp(statistics.fmean(math.log(row.ratio if row.unit == "tokens/s" else 1 / row.ratio) for row in rows))


def _chosen(record: TuneRecord, now: Setting, winner: Setting) -> list[str]:
    screened = [each.result for each in record.entry(winner).screened]
    results = record.baselines if winner == now else screened
    if not results:
        return []
    chosen = results[-1].chosen
    channels = [] if chosen.channels is None else [f"{chosen.channels} channels, a ring in each"]
    link = [f"over {chosen.link}"] if chosen.link else []
    return [*chosen.transports, *link, *channels, *chosen.algorithms]
