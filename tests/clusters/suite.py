"""Causes each fault of one engine at a random moment of a run: `python -m tests.slurm`, `python -m tests.ray`."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

from hosts.practice import namespaces
from tests.clusters.trial import DELAY_SECONDS, LabT, Site, Strike, trial

TRIAL_SECONDS = 900.0
LAST_CHARACTERS = 4_000
"""How much is printed of the end of each log if a trial failed."""


@dataclass(frozen=True)
class Fault(Generic[LabT]):
    """A fault, and the cluster to which it happens."""

    strike: Strike[LabT]
    lab: Callable[[Path], LabT]
    settings: Mapping[str, object] = field(default_factory=dict)
    """Keys of the cluster in the inventory, besides the lab's own keys."""


def nothing(_: Site[LabT], __: random.Random) -> None:
    """Do nothing, for an undisturbed run."""


@dataclass(frozen=True)
class Suite(Generic[LabT]):
    """The faults of one engine."""

    module: str
    """The name of the module that runs `main`."""
    faults: Mapping[str, Fault[LabT]]
    obstacle: Callable[[], str]
    """Returns why this machine cannot run the lab; "" if it can."""

    def main(self, arguments: list[str]) -> int:
        """Run the chosen faults; return 1 if a run did not survive a fault, 2 if this machine cannot run the lab."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}")
        parser.add_argument("--only", action="append", choices=list(self.faults))
        parser.add_argument("--inside", choices=list(self.faults))
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument(
            "--rounds", type=int, default=1, help="how often each fault is run, each time with another seed"
        )
        parser.add_argument("--results", type=Path)
        options = parser.parse_args(arguments)
        if options.inside:
            return self._inside(options.inside, options.seed)
        if why := self.obstacle():
            print(why, file=sys.stderr)
            return 2
        failed = 0
        for number, name in enumerate(list(options.only or self.faults) * options.rounds):
            line = json.dumps(self._one(name, options.seed + number))
            failed += "failed" in line
            print(line, flush=True)
            if options.results is not None:
                with options.results.open("a") as out:
                    out.write(line + "\n")
        return int(failed > 0)

    def _one(self, name: str, seed: int) -> dict[str, object]:
        """Run one trial with its own lab in its own namespaces, by this same program; return the result's line."""
        argv = [*namespaces.UNSHARE, sys.executable, "-m", self.module, "--inside", name, "--seed", str(seed)]
        began = time.monotonic()
        try:
            ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=TRIAL_SECONDS)
            said = "" if ended.returncode == 0 else ended.stderr.strip() or f"it ended with {ended.returncode}"
        except subprocess.TimeoutExpired:
            said = f"it took longer than {TRIAL_SECONDS:g} s"
        outcome = f"failed: {said}" if said else "every record delivered once"
        return {"fault": name, "seed": seed, "outcome": outcome, "seconds": round(time.monotonic() - began, 1)}

    def _inside(self, name: str, seed: int) -> int:
        fault, draw = self.faults[name], random.Random(seed)

        def attempt(site: Site[LabT]) -> None:
            trial(site, fault.strike, draw.uniform(0.05, 0.8), draw)

        return tried(fault.lab, attempt, fault.settings)


def tried(
    lab: Callable[[Path], LabT],
    attempt: Callable[[Site[LabT]], None],
    settings: Mapping[str, object],
    delay_seconds: float = DELAY_SECONDS,
) -> int:
    """Start a lab in this process's own namespaces and build a site in a new folder, and attempt something there.

    Return 0, or 1 if the attempt failed; then the logs of the jobs and the lab and the traceback are on stderr.
    """
    root = Path(tempfile.mkdtemp(prefix="roost-cluster-"))
    site = Site(root, lab(root / "lab"), delay_seconds)
    try:
        namespaces.run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")  # no other trial's dumps
        site.lab.start()
        site.build(**settings)
        attempt(site)
        return 0
    except Exception:
        for log in [*site.shared.glob("jobs/*/*.log"), *site.run.glob("jobs/*.log"), *site.lab.logs()]:
            with suppress(OSError):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-LAST_CHARACTERS:]}", file=sys.stderr)
        traceback.print_exc()
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)
