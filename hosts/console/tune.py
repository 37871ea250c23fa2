"""Output of `inv tune`: the table of settings, the winner with its interval, the fragment to paste."""

from __future__ import annotations

from hosts.bench.compare import SMALLEST_DIFFERENCE, Comparison
from hosts.console.output import Output
from hosts.inventory.document import text_of
from hosts.tune.outcome import Row, Tuned
from hosts.tune.search import Search

MOST_ROWS = 20


def search_line(search: Search) -> str:
    """Return a line on what would be searched."""
    grid = ", ".join(f"{name} ({values})" for name, values in search.variables.items())
    return f"would search {search.settings} settings: {grid}"


def show_search(output: Output, host: str, search: Search) -> None:
    """Print the stages of a search with their sizes."""
    rows = [
        (
            "1: collectives",
            f"{search.screenings} measurements",
            f"{search.screening_minutes:.0f}",
            f"{search.screening_minutes_at_most:.0f}",
        ),
        ("2: real servers", f"{search.servers} starts and measurements", "-", f"{search.servers_minutes_at_most:.0f}"),
    ]
    output.table(("stage", "at most", "minutes, about", "minutes until deadlines"), rows, title=host)


def tuned_line(result: Tuned) -> str:
    """Return a line on the winner."""
    if result.is_current:
        return f"the current setting stays ({result.winner.key}): nothing was faster for {result.goal}"
    gain = "; ".join(_comparison(each) for each in result.gain)
    return f"{result.winner.key} is faster for {result.goal}: {gain}"


def show_tuned(output: Output, result: Tuned) -> None:
    """Print the table, then the fragment for the inventory."""
    rows = [_cells(row) for row in result.rows[:MOST_ROWS]]
    output.table(("setting", "collectives", "server: B / A (95 % interval)", "note"), rows, title=result.host)
    if len(result.rows) > MOST_ROWS:
        output.note(f"{len(result.rows) - MOST_ROWS} slower settings are only in the record.")
    if result.drift >= SMALLEST_DIFFERENCE:
        output.note(
            f"{result.host}: the current setting's own speed changed by {result.drift:.0%} during the screening; each "
            "setting was compared with a measurement from the same minute."
        )
    for warning in result.warnings:
        output.note(f"{result.host}: NCCL says: {warning}")
    if result.chosen:
        output.note(f"{result.host}: under the winner NCCL used {', '.join(result.chosen)}")
    if not result.is_current:
        output.line(f"\n{text_of(result.fragment)}")


def _cells(row: Row) -> tuple[str, str, str, str]:
    screened = "-" if row.screened is None else f"{row.screened:.2f} x"
    return (row.setting.key, screened, "; ".join(_comparison(each) for each in row.confirmed) or "-", row.note)


def _comparison(row: Comparison) -> str:
    return f"{row.name}: {row.ratio:.3f} ({row.low:.3f} to {row.high:.3f}), {row.verdict}"
