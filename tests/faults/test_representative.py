"""A few faults of the suite, for every `make test`, over real sshd in namespaces. `make faults` runs all faults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hosts.practice import namespaces

pytestmark = pytest.mark.namespaces

SEED = 20
TRIALS = ("reboot:half", "cut-5s:first", "kill-pull:half")


def test_a_reboot_a_cut_and_a_killed_pull_lose_nothing(clone: Path) -> None:
    why = namespaces.obstacle()
    if why:
        pytest.skip(f"no namespaces here: {why}")
    chosen = [word for trial in TRIALS for word in ("--only", trial)]
    argv = [sys.executable, "-m", "tests.faults", "--seed", str(SEED), *chosen]
    ended = subprocess.run(argv, cwd=clone, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    totals = f"runs {len(TRIALS)}, failed 0, records {40 * len(TRIALS)}, lost 0, duplicated 0, corrupt 0"
    assert totals in ended.stdout, ended.stdout
