"""Measures how near to the ideal time a fleet ends whose one host is ten times slower, with an attached laptop.

A program of the fault suite: `python -m tests.faults.slow_host [--results FILE]`, over real sshd, in namespaces if the
machine allows them. In the ideal time both hosts, at their measured speeds, do all tokens and end at the same moment.
Exits with 1 if the fleet took longer than that by more than `AIM`, or if a record was not made exactly once.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from hosts.practice import namespaces
from tests.faults.fleet import PATTERN_RUN, FaultFleet, Shape, fault_fleet

AIM = 0.05
LENGTHS = [8 + number * 7 % 13 for number in range(1600)]
DELAYS = {"a": 0.3, "b": 3.0}
HIGH_WATER_BYTES = 60_000
SETTLED_SECONDS = 5.0
"""The time at a run's beginning in which the speed is not steady yet."""
PATIENCE_SECONDS = 500.0


@dataclass(frozen=True)
class Measured:
    """The result of one run of the fleet."""

    seconds: float
    ideal_seconds: float
    plan_seconds: float
    """The time that the plan alone, with half of the tokens for each host, would have taken."""
    tokens_per_second: dict[str, float]
    records: dict[str, int]
    moves: int
    lost: int
    doubled: int

    @property
    def beyond_ideal(self) -> float:
        """The time beyond the ideal, as a share of the ideal."""
        return self.seconds / self.ideal_seconds - 1


def measure(fleet: FaultFleet) -> Measured:
    """Type `inv extract`, stay attached until the run is over, and return the result."""
    process = fleet.inv("extract", "--hosts", "all", "--run", PATTERN_RUN)
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, said
    rows = {name: _rows(fleet.run_folder(name, PATTERN_RUN) / "ledger.sqlite") for name in fleet.boxes}
    began = min(start for start, _ in rows.values())
    ended = max(at for _, found in rows.values() for _, _, at in found)
    share = {name: fleet.plan(PATTERN_RUN).share(name) for name in fleet.boxes}
    speeds = {name: _speed(found, share[name].tokens) for name, (_, found) in rows.items()}  # type: ignore[union-attr]
    every = [index for _, found in rows.values() for index, _, _ in found]
    return Measured(
        seconds=ended - began,
        ideal_seconds=sum(LENGTHS) / sum(speeds.values()),
        plan_seconds=max(share[name].tokens / speeds[name] for name in speeds),  # type: ignore[union-attr]
        tokens_per_second=speeds,
        records={name: len(found) for name, (_, found) in rows.items()},
        moves=said.count("took over"),
        lost=len(set(range(len(LENGTHS))) - set(every)),
        doubled=len(every) - len(set(every)),
    )


def _rows(ledger: Path) -> tuple[float, list[tuple[int, int, float]]]:
    """Return when the host's first session began, and index, tokens and end of each record that the host finished."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        (began,) = db.execute("SELECT MIN(started_at) FROM sessions").fetchone()
        rows = db.execute("SELECT idx, rows, finished_at FROM records WHERE state = 'done' ORDER BY finished_at")
        return began, rows.fetchall()


def _speed(rows: list[tuple[int, int, float]], share_tokens: int) -> float:
    """Return the tokens a second while the host did its own share, after the speed was steady."""
    first = rows[0][2] + SETTLED_SECONDS
    done, steady = 0, []
    for _, tokens, at in rows:
        done += tokens
        if at >= first and done <= share_tokens:
            steady.append((tokens, at))
    return sum(tokens for tokens, _ in steady[1:]) / (steady[-1][1] - steady[0][1])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.slow_host")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args(arguments)
    why = namespaces.enter("tests.faults.slow_host", arguments)
    if why:
        print(f"No namespaces here ({why}): over loopback.", file=sys.stderr)
    with fault_fleet(isolated=not why, shape=Shape(LENGTHS, DELAYS, HIGH_WATER_BYTES)) as fleet:
        measured = measure(fleet)
        line = json.dumps({"at": time.strftime("%Y-%m-%d %H:%M"), **asdict(measured), "beyond": measured.beyond_ideal})
        print(line, flush=True)
        if options.results is not None:
            with options.results.open("a") as out:
                out.write(line + "\n")
        fleet.end()
    return int(measured.beyond_ideal > AIM or measured.lost > 0 or measured.doubled > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
