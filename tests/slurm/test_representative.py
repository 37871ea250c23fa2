"""A few faults on a real Slurm on every `make test`; `python -m tests.slurm` runs them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hosts.practice.slurm import lab

pytestmark = [pytest.mark.namespaces, pytest.mark.long]

FAULTS = ("split-brain",)


def test_a_run_survives_a_node_that_slurm_takes_for_dead(clone: Path) -> None:
    if why := lab.obstacle():
        pytest.skip(why)
    chosen = [word for fault in FAULTS for word in ("--only", fault)]
    argv = [sys.executable, "-m", "tests.slurm", "--seed", "7", *chosen]
    ended = subprocess.run(argv, cwd=clone, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("every record delivered once") == len(FAULTS)
