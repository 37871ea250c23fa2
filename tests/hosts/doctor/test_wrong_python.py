"""A host whose `python` cannot run Roost: everything else about the host is still said."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest

from hosts.doctor import examine as examining
from hosts.doctor.examine import examine
from hosts.errors import PythonError
from hosts.inventory.model import Host
from hosts.transport.local import LocalBackend


def bare_python(folder: Path) -> str:
    """An interpreter without any installed package."""
    venv.create(folder / "bare", with_pip=False, symlinks=True)
    return str(folder / "bare" / "bin" / "python")


def host(folder: Path, python: str) -> LocalBackend:
    return LocalBackend(Host(name="here", connection="local", python=python, workdir=str(folder / "work"), gpus=0))


@pytest.mark.parametrize("missing", [True, False])
def test_the_other_facts_are_read_with_another_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    monkeypatch.setattr(examining, "OTHER_PYTHONS", (bare_python(tmp_path), sys.executable))
    wrong = str(tmp_path / "none" / "python") if missing else bare_python(tmp_path)
    found = examine(host(tmp_path, wrong)).findings
    subjects = [finding.subject for finding in found]
    assert [(finding.level, finding.subject) for finding in found if finding.subject in ("python", "sglang")] == [
        ("red", "python")
    ]
    assert {"machine", "disk"} <= set(subjects)
    assert ("could not be started" if missing else "no module 'pydantic'") in found[0].text


def test_without_a_working_python_the_first_pythons_error_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "OTHER_PYTHONS", (bare_python(tmp_path),))
    with pytest.raises(PythonError, match="could not be started"):
        examine(host(tmp_path, "/nonexistent/python"))
