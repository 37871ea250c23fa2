"""Output of `inv bench`: medians with their spread, and comparisons with their confidence interval."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hosts.bench.compare import FEWEST_VALUES, Comparison
from hosts.console.output import Output
from hosts.fleet import Outcome
from remote.shared.messages.bench import BenchResult


def bench_line(result: BenchResult) -> str:
    """Return a line on the measured server, with the name of the kept result."""
    capture = "" if result.capture == "none" else f", capture {result.capture}"
    return (
        f"{result.server} in mode {result.mode}{capture}, SGLang {result.sglang}; kept as {result.host}/{result.label}"
    )


def show_measurements(output: Output, outcomes: Sequence[Outcome[BenchResult]]) -> None:
    """Print the medians, then the measurements left out and what may have disturbed the others."""
    results = [outcome.result for outcome in outcomes if outcome.ok]
    rows = [
        (result.host, each.name, *_spread(each.values), each.unit, len(each.values))
        for result in results
        for each in result.measurements
    ]
    if rows:
        output.table(("host", "quantity", "median", "lowest", "highest", "unit", "repetitions"), rows)
    for result in results:
        for line in result.left_out:
            output.note(f"{result.host}: {line}")
        for line in result.disturbed:
            output.note(f"{result.host}: something may have disturbed these numbers: {line}")


def show_comparison(output: Output, rows: Sequence[Comparison], differences: Sequence[str]) -> None:
    """Print B against A, one line for each quantity, then the circumstances that differ."""
    cells = [(row.name, _number(row.first), _number(row.second), row.unit, _ratio(row), row.verdict) for row in rows]
    output.table(("quantity", "A", "B", "unit", "B / A (95 % interval)", "B is"), cells)
    if any(row.values < FEWEST_VALUES for row in rows):
        output.note(f"A side has fewer than {FEWEST_VALUES} values, so no difference can be told from noise.")
    for line in differences:
        output.note(f"Differs between A and B: {line}")


def _ratio(row: Comparison) -> str:
    return f"{row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})"


def _spread(values: list[float]) -> tuple[str, str, str]:
    return _number(statistics.median(values)), _number(min(values)), _number(max(values))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
