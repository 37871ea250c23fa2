"""A person's commands, and two of the faults, on a real Slurm. `python -m tests.slurm` runs all faults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hosts.practice import namespaces
from hosts.practice.slurm import lab

pytestmark = [pytest.mark.namespaces, pytest.mark.skipif(bool(lab.obstacle()), reason=lab.obstacle())]


@pytest.mark.parametrize("fault", ["split-brain", "out-of-memory"])
def test_a_run_survives_a_fault(clone: Path, fault: str) -> None:
    argv = [sys.executable, "-m", "tests.slurm", "--seed", "7", "--only", fault]
    ended = subprocess.run(argv, cwd=clone, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "every record delivered once" in ended.stdout


def test_commands_refuse_an_unshared_folder_and_end_only_the_run_s_own_jobs(clone: Path) -> None:
    argv = [*namespaces.UNSHARE, sys.executable, "-m", "tests.slurm.commands"]
    ended = subprocess.run(argv, cwd=clone, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_verbs_run_as_jobs_with_their_own_output_and_exit_codes(clone: Path) -> None:
    argv = [*namespaces.UNSHARE, sys.executable, "-m", "tests.slurm.jobs"]
    ended = subprocess.run(argv, cwd=clone, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
