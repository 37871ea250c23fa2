"""The trials' results: a line of JSON for each trial, appended when it ends, and the table by fault and outcome.

`python -m tests.faults.results FILE …` prints the table and the totals, which are in `docs/reliability.md`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

RANDOM = "random"


@dataclass(frozen=True)
class Result:
    """One trial."""

    fault: str
    moment: str
    """The moment's name, or for a random moment the share of the step that was done: `random 0.42`."""
    hosts: int
    victim: str
    seed: int
    seconds: float
    outcome: str
    records: int
    lost: int = 0
    duplicated: int = 0
    corrupt: int = 0
    quarantined: int = 0
    notes: list[str] = field(default_factory=list)
    revision: str = ""
    """The commit that was on trial."""
    at: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome.startswith("FAILED")

    @property
    def is_random(self) -> bool:
        return self.moment.startswith(RANDOM)

    def row(self) -> str:
        """Return the line of the table that the runner prints."""
        notes = f" ({'; '.join(self.notes)})" if self.notes else ""
        cells = (self.fault, self.moment, self.victim, self.seed, f"{self.seconds:.0f}", self.outcome + notes)
        return f"| {' | '.join(map(str, cells))} |"


def append(path: Path, result: Result) -> None:
    """Add one line to a file, to which several runners may write at once."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def read(path: Path) -> list[Result]:
    """Return all trials in a file."""
    return [Result(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def totals(results: Iterable[Result]) -> str:
    """Return a sentence with the sums over all trials."""
    results = list(results)
    sums: Counter[str] = Counter()
    for result in results:
        for name in ("records", "lost", "duplicated", "corrupt"):
            sums[name] += getattr(result, name)
    failed = sum(result.failed for result in results)
    counted = ", ".join(f"{name} {sums[name]}" for name in ("records", "lost", "duplicated", "corrupt"))
    return f"runs {len(results)}, failed {failed}, {counted}"


def table(results: list[Result]) -> str:
    """Return the table: for each fault the number of trials at named and at random moments, and the outcomes."""
    lines = ["| fault | named moments | random moments | outcome |", "|---|---|---|---|"]
    for fault in sorted({result.fault for result in results}):
        mine = [result for result in results if result.fault == fault]
        named = Counter(result.moment for result in mine if not result.is_random)
        moments = ", ".join(f"{moment} {count}" for moment, count in sorted(named.items()))
        outcomes = Counter("failed" if result.failed else result.outcome for result in mine)
        outcome = "; ".join(f"{text}: {count}" for text, count in outcomes.most_common())
        lines.append(f"| {fault} | {moments or '-'} | {sum(result.is_random for result in mine)} | {outcome} |")
    return "\n".join(lines)


def main(paths: list[str]) -> int:
    results = [result for path in paths for result in read(Path(path))]
    print(table(results))
    print(f"\nAt random moments: {totals(result for result in results if result.is_random)}.")
    print(f"All: {totals(results)}.")
    for result in results:
        if result.failed:
            print(f"- {result.fault}, {result.moment}, seed {result.seed}: {result.outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
