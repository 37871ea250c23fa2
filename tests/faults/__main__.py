"""`python -m tests.faults`: causes every fault in a fleet at many moments, and prints the fate of the records.

Typed by a person or by `make faults`. Makes everything that it needs in its own namespaces and in a temporary folder,
and removes both. The exit code is 1 if a trial failed; the seed in the trial's line repeats the trial.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hosts.practice import namespaces
from tests.faults.box import CLONE
from tests.faults.faults import FAULTS, Fault
from tests.faults.fleet import PATTERN_RUN, RECORDS, FaultFleet, fault_fleet
from tests.faults.results import RANDOM, Result, append, totals
from tests.faults.trial import WORKING, Trial

ENDED_WELL = "every record delivered once"
QUARANTINED = "every other record delivered once, this one quarantined with its cause"


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
        arguments = [*arguments, "--seed", str(options.seed)]
    if options.fleets > 1 and options.part is None:
        return _side_by_side(options, arguments)
    why = "--loopback was given" if options.loopback else namespaces.enter("tests.faults", arguments)
    if why:
        print(f"No namespaces: {why}. The trials run on loopback, without the faults that need namespaces.", flush=True)
    return _run_all(options, isolated=not why)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="seed of the first trial; each further trial has the next seed")
    parser.add_argument("--only", action="append", default=[], metavar="NAME[:MOMENT]", help="may be repeated")
    parser.add_argument("--minutes", type=float, default=0, help="cause faults at random moments for this time")
    parser.add_argument("--fleets", type=int, default=1, help="number of fleets side by side")
    parser.add_argument("--results", type=Path, help="append a line of JSON for each trial to this file")
    parser.add_argument("--loopback", action="store_true", help="run as on a machine without namespaces")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    known = {fault.name for fault in FAULTS}
    unknown = {name.split(":")[0] for name in options.only} - known
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")
    return options


def _side_by_side(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run the fleets in a process each, which does its part of the trials; return the highest exit code."""
    argv = [sys.executable, "-m", "tests.faults", *arguments]
    parts = [
        subprocess.Popen(namespaces.bound([*argv, "--part", str(part)]), cwd=CLONE) for part in range(options.fleets)
    ]
    return max(namespaces.ended(part) for part in parts)


def _run_all(options: argparse.Namespace, *, isolated: bool) -> int:
    begun = time.monotonic()
    part, revision = options.part or 0, _revision()
    results: list[Result] = []
    if not part:
        print("| fault | moment | victim | seed | seconds | outcome |\n|---|---|---|---|---|---|", flush=True)
    with fault_fleet(isolated=isolated) as fleet:
        built = time.monotonic() - begun
        trials = itertools.islice(enumerate(_schedule(options, isolated=isolated)), part, None, options.fleets)
        for number, (fault, moment) in trials:
            result = _run(fleet, fault, moment, options.seed + number, revision)
            print(result.row(), flush=True)
            results.append(result)
            if options.results is not None:
                append(options.results, result)
            if options.minutes and time.monotonic() - begun > options.minutes * 60:
                break
        left = fleet.end()
    for what in left:
        print(f"not removed by inv stop and inv clean: {what}")
    seconds = f"{time.monotonic() - begun:.0f} s, {built:.0f} s of them to build the fleet"
    print(f"\n{totals(results)}; {seconds}; first seed {options.seed}")
    return 1 if any(result.failed for result in results) or left else 0


def _schedule(options: argparse.Namespace, *, isolated: bool) -> Iterator[tuple[Fault, str]]:
    """Yield every fault at each of its moments once; with `--minutes`, faults at random moments without end."""
    wanted = [tuple(name.split(":")) for name in options.only]
    trials = [
        (fault, moment)
        for fault in FAULTS
        if isolated or not fault.needs_namespaces
        for moment in fault.moments
        if not wanted or (fault.name,) in wanted or (fault.name, moment) in wanted
    ]
    if not options.minutes:
        yield from trials
        return
    at_random = [trial for trial in trials if trial[1] == RANDOM] or trials
    draw = random.Random(options.seed)
    while True:
        yield from draw.sample(at_random, len(at_random))


def _run(fleet: FaultFleet, fault: Fault, moment: str, seed: int, revision: str) -> Result:
    draw = random.Random(seed)
    own = fault.step in WORKING or fault.own_run
    run = f"trial-{seed}" if own else PATTERN_RUN
    trial = Trial(fleet, fault, moment, run, draw.choice(sorted(fleet.boxes)), draw)
    begun, outcome = time.monotonic(), ENDED_WELL
    try:
        trial.go()
        outcome = QUARANTINED if trial.account.quarantined else ENDED_WELL
    except Exception as error:
        outcome = f"FAILED: {type(error).__name__}: {error}".replace("\n", " ")
        fleet.heal()
    return Result(
        fault=fault.name,
        moment=moment if trial.fraction is None else f"{RANDOM} {trial.fraction:.2f}",
        hosts=len(trial.names),
        victim=trial.victim,
        seed=seed,
        seconds=round(time.monotonic() - begun, 1),
        outcome=outcome,
        records=RECORDS,
        lost=len(trial.account.lost),
        duplicated=len(trial.account.duplicated),
        corrupt=len(trial.account.corrupt),
        quarantined=len(trial.account.quarantined),
        notes=trial.notes,
        revision=revision,
        at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )


def _revision() -> str:
    """Return the commit on trial; "" if this folder is no clone."""
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=CLONE, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
