"""The wheel alone does the whole main job: an empty venv, an empty folder, no clone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hosts.practice.paths import PracticePaths

pytestmark = [pytest.mark.engine, pytest.mark.ssh, pytest.mark.wheels, pytest.mark.long]
QUIET = ("--quiet", "--disable-pip-version-check")
UNREACHABLE = ("No matching distribution found", "Could not find a version")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, clone: Path) -> Path:
    """The `bin` folder of a new venv into which the wheel and what it needs were installed."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", *QUIET, "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*build, str(clone)], check=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", *QUIET, str(wheel)]
    done = subprocess.run(install, check=False, capture_output=True, text=True)
    if done.returncode and any(words in done.stderr for words in UNREACHABLE):
        pytest.skip("pip reaches no registry of packages here")
    assert done.returncode == 0, done.stderr
    return python.parent


def test_the_wheel_alone_takes_a_run_from_prepare_to_verify(installed: Path, tmp_path: Path, clone: Path) -> None:
    for name in (".engine", ".readers"):
        (tmp_path / name).symlink_to(clone / name)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "ROOST"))}
    roost = installed / "roost"
    try:
        done = subprocess.run(
            [roost, "practice", "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert "300 of 300" in done.stdout
        assert "opened by speculators" in done.stdout
        assert "inv " not in "".join(line for line in done.stdout.splitlines() if line.startswith("$"))
    finally:
        subprocess.run([roost, "practice", "down"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert not PracticePaths(tmp_path).state.exists()
