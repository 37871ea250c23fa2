"""Two of the faults of `python -m tests.ray`, and every refusal, on a real Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hosts.practice.ray import lab

pytestmark = pytest.mark.namespaces


@pytest.fixture(autouse=True)
def _possible(clone: Path) -> None:
    if why := lab.obstacle(clone):
        pytest.skip(why)


@pytest.mark.parametrize("fault", ["actor-killed", "controller-killed"])
def test_a_run_survives_a_fault(clone: Path, fault: str) -> None:
    argv = [sys.executable, "-m", "tests.ray", "--seed", "7", "--only", fault]
    ended = subprocess.run(argv, cwd=clone, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "every record delivered once" in ended.stdout


@pytest.mark.long
def test_settings_that_cannot_work_are_refused_with_a_sentence(clone: Path) -> None:
    argv = [sys.executable, "-m", "tests.ray.refusals"]
    ended = subprocess.run(argv, cwd=clone, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(": refused: ") == 8
