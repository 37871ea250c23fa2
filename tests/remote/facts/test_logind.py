"""What logind does at the last logout, from recorded answers; and detached work in the user's own manager."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from remote import detached, logind

LOGINCTL_255 = "KillUserProcesses=no\nRemoveIPC=yes\n"
"""`loginctl show-session --property=KillUserProcesses --property=RemoveIPC` of systemd 255, Ubuntu 24.04."""
LOGIND_CONF_252 = """#  This file is part of systemd.
[Login]
#NAutoVTs=6
#KillUserProcesses=no
;RemoveIPC=no
"""


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A box of a user who is not root, with systemd as its init system and no logind that answers."""
    monkeypatch.setattr(logind, "BOOTED", tmp_path / "booted")
    monkeypatch.setattr(logind, "LINGER", tmp_path / "linger")
    monkeypatch.setattr(logind, "RUNTIME", tmp_path / "user")
    monkeypatch.setattr(logind, "CONFIGURATIONS", (tmp_path / "etc", tmp_path / "usr"))
    monkeypatch.setattr(logind, "_user", lambda: "alice")
    for name in ("booted", "linger", "user", "etc", "usr"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    program(tmp_path / "bin", "loginctl", "exit 1")
    return tmp_path


def test_without_systemd_there_is_no_finding(box: Path) -> None:
    (box / "booted").rmdir()
    assert logind.login_facts() is None
    assert not logind.lingers()


def test_loginds_own_answer_counts(box: Path) -> None:
    program(box / "bin", "loginctl", f"printf '{LOGINCTL_255}'")
    (box / "etc" / "logind.conf").write_text("KillUserProcesses=yes\n")
    told = logind.login_facts()
    assert told is not None
    assert (told.kill_user_processes, told.remove_ipc, told.lingers) == (False, True, False)


def test_a_logind_that_does_not_answer_is_read_from_its_files(box: Path) -> None:
    (box / "usr" / "logind.conf").write_text(LOGIND_CONF_252)
    told = logind.login_facts()
    assert told is not None
    assert (told.kill_user_processes, told.remove_ipc) == (False, True), "the defaults"
    for folder, name, text in (
        ("usr", "50-vendor.conf", "[Login]\nKillUserProcesses=yes\nRemoveIPC=yes\n"),
        ("etc", "50-vendor.conf", "[Login]\nKillUserProcesses=yes\n"),
        ("etc", "60-site.conf", "[Login]\nRemoveIPC = no\n"),
    ):
        (box / folder / "logind.conf.d").mkdir(exist_ok=True)
        (box / folder / "logind.conf.d" / name).write_text(text)
    told = logind.login_facts()
    assert told is not None
    assert (told.kill_user_processes, told.remove_ipc) == (True, False)


def linger(box: Path) -> None:
    (box / "linger" / "alice").touch()
    (box / "user" / str(logind.user_id())).mkdir()


def test_a_user_who_lingers_has_detached_work_in_a_scope_of_its_own_manager(
    box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linger(box)
    told = logind.login_facts()
    assert told is not None
    assert told.lingers
    monkeypatch.setattr(logind, "user_id", lambda: 1000)
    (box / "user" / str(logind.user_id())).mkdir(exist_ok=True)
    note = box / "said"
    program(box / "bin", "systemd-run", f'echo "$XDG_RUNTIME_DIR $*" >> {note}\nshift 5\nexec "$@"')
    process = detached.start(["sh", "-c", "echo $$"], cwd=box, log=box / "log")
    assert process.wait(30) == 0
    assert (box / "log").read_text() == f"{process.pid}\n", "the scope becomes the program"
    runtime = box / "user" / str(logind.user_id())
    assert note.read_text().splitlines()[-1] == f"{runtime} --user --scope --quiet --collect -- sh -c echo $$"


@pytest.mark.parametrize("why", ["does not linger", "a manager that fails", "root"])
def test_without_lingering_detached_work_starts_directly(box: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why != "does not linger":
        linger(box)
    monkeypatch.setattr(logind, "user_id", lambda: 0 if why == "root" else 1000)
    (box / "user" / str(logind.user_id())).mkdir(exist_ok=True)
    program(box / "bin", "systemd-run", "exit 1" if why == "a manager that fails" else 'shift 5; exec "$@" extra')
    process = detached.start(["echo", "it"], cwd=box, log=box / "log")
    assert process.wait(30) == 0
    assert (box / "log").read_text() == "it\n"
    assert (box / "log").stat().st_mode & 0o777 == 0o600
