"""Setting up: installed parts are not installed again, and missing programs are named in one sentence."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hosts.practice import system
from hosts.practice.engine import install


def test_an_engine_that_is_up_to_date_is_not_changed(clone: Path) -> None:
    script = clone / "hosts" / "practice" / "engine" / "install.py"
    base = sys.base_prefix + "/bin/python3"
    done = subprocess.run([base, str(script), str(clone / ".engine")], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("is up to date.\n")


def test_changed_requirements_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    for path, options in install.STEPS:
        (tmp_path / path.name).write_bytes(path.read_bytes())
        steps.append((tmp_path / path.name, options))
    before = install._digest()
    monkeypatch.setattr(install, "STEPS", tuple(steps))
    assert install._digest() == before
    (tmp_path / "requirements-torch.txt").write_text("torch==2.0\n")
    assert install._digest() != before


def test_the_shims_are_linked_where_a_venv_keeps_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's Python answers for /usr/local where no scheme is named."""
    monkeypatch.setattr(sysconfig.get_path, "__defaults__", ("posix_home", None, True))
    packages = tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    install._link_shims(tmp_path)
    assert str(install.SHIMS) in (packages / "roost-shims.pth").read_text()


def test_a_missing_program_is_named_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(system, "SYSTEM_FOLDERS", str(tmp_path))
    assert system.main() == 1
    said = capsys.readouterr().out
    assert "lacks ssh, ssh-keygen, sshd, rsync; type: sudo apt-get install openssh-client openssh-server rsync" in said
    assert said.count("\n") == 1
