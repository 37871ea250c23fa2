"""`python -m tests.faults`: break a fleet in every way and at many moments, and print what became of its records.

Typed by a person or by `make faults`. Makes everything it needs in namespaces of its own and one temporary folder,
and leaves neither behind. Exit code 1 where a trial failed; its line's seed repeats that trial.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults import namespaces
from tests.faults.faults import FAULTS, Fault
from tests.faults.fleet import PATTERN_RUN, RECORDS, FaultFleet, fault_fleet
from tests.faults.trial import Trial


@dataclass
class Totals:
    """What all trials came to."""

    runs: int = 0
    failed: int = 0
    records: int = 0
    lost: int = 0
    duplicated: int = 0
    corrupt: int = 0

    def add(self, trial: Trial, ended_well: bool) -> None:
        self.runs += 1
        self.failed += not ended_well
        self.records += RECORDS
        self.lost += len(trial.account.lost)
        self.duplicated += len(trial.account.duplicated)
        self.corrupt += len(trial.account.corrupt)

    def __str__(self) -> str:
        return (
            f"runs {self.runs}, failed {self.failed}, records {self.records}, lost {self.lost}, "
            f"duplicated {self.duplicated}, corrupt {self.corrupt}"
        )


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    why = namespaces.enter("tests.faults", arguments)
    if why:
        print(f"No namespaces: {why}. On loopback instead, without the faults that need them.", flush=True)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print("| fault | moment | victim | seed | seconds | outcome |\n|---|---|---|---|---|---|", flush=True)
    totals, begun = Totals(), time.monotonic()
    with fault_fleet(isolated=not why) as fleet:
        built = time.monotonic() - begun
        for number, (fault, moment) in enumerate(_schedule(options, isolated=not why)):
            _run(fleet, fault, moment, seed + number, totals)
            if options.minutes and time.monotonic() - begun > options.minutes * 60:
                break
        left = fleet.end()
    for what in left:
        print(f"left over after inv stop and inv clean: {what}")
    print(f"\n{totals}; {time.monotonic() - begun:.0f} s, {built:.0f} s of it until the fleet stood; first seed {seed}")
    return 1 if totals.failed or left else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first trial; each further one's is one more")
    parser.add_argument("--only", action="append", default=[], metavar="NAME[:MOMENT]", help="may be repeated")
    parser.add_argument("--minutes", type=float, default=0, help="go round at random moments until then")
    options = parser.parse_args(arguments)
    known = {fault.name for fault in FAULTS}
    unknown = {name.split(":")[0] for name in options.only} - known
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")
    return options


def _schedule(options: argparse.Namespace, *, isolated: bool) -> Iterator[tuple[Fault, str]]:
    """Every fault at each of its moments once; with `--minutes`, at random moments for ever after."""
    wanted = [tuple(name.split(":")) for name in options.only]
    trials = [
        (fault, moment)
        for fault in FAULTS
        if isolated or not fault.needs_namespaces
        for moment in fault.moments
        if not wanted or (fault.name,) in wanted or (fault.name, moment) in wanted
    ]
    yield from trials
    if options.minutes:
        last = {fault.name: (fault, moment) for fault, moment in trials}
        yield from itertools.cycle(last.values())


def _run(fleet: FaultFleet, fault: Fault, moment: str, seed: int, totals: Totals) -> None:
    draw = random.Random(seed)
    own = fault.step == "extract" or fault.own_run
    run = f"trial-{totals.runs}" if own else PATTERN_RUN
    trial = Trial(fleet, fault, moment, run, draw.choice(sorted(fleet.boxes)), draw)
    begun, outcome = time.monotonic(), "every record delivered once"
    try:
        trial.go()
    except Exception as error:
        outcome = f"FAILED: {type(error).__name__}: {error}".replace("\n", " ")
    totals.add(trial, not outcome.startswith("FAILED"))
    seconds = time.monotonic() - begun
    notes = f" ({'; '.join(trial.notes)})" if trial.notes else ""
    print(f"| {fault.name} | {moment} | {trial.victim} | {seed} | {seconds:.0f} | {outcome}{notes} |", flush=True)
    if outcome.startswith("FAILED"):
        fleet.heal()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
