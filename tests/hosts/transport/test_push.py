"""A pushed folder is complete or does not exist, and an interrupted push continues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hosts.errors import HostError, UsageError
from hosts.inventory.model import Host
from hosts.transport.local import LocalBackend
from hosts.transport.process import Process
from hosts.transport.push import SOURCE, _Dialogue, _files, push

HOSTILE = "a'; echo foo\n\"b"


@pytest.fixture
def backend() -> LocalBackend:
    return LocalBackend(Host(name="local", connection="local", python=sys.executable))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / HOSTILE
    (root / "deep er").mkdir(parents=True)
    (root / "assignment.json").write_text('{"records": 3}')
    (root / "deep er" / "tokens.safetensors").write_bytes(bytes(range(256)) * 20_000)
    (root / "empty").touch()
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def leave_half(folder: Path, target: Path) -> Path:
    """Start a push as `push` does and cut it in the middle of the large file; return what it left."""
    receiver = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", SOURCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    listing = [{"path": f.relative, "size": f.size, "sha256": f.sha256} for f in _files(folder)]
    first = json.dumps({"target": str(target), "files": listing}) + "\n" + json.dumps({"starts": [0, 0, 0]}) + "\n"
    sent = (folder / "assignment.json").read_bytes() + contents(folder)["deep er/tokens.safetensors"][:3_000_000]
    receiver.communicate(first.encode() + sent, timeout=30)
    assert receiver.returncode == 1
    (aside,) = [path for path in target.parent.iterdir() if path.is_dir()]
    return aside


def test_a_pushed_folder_holds_the_same_files_and_nothing_else(
    backend: LocalBackend, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "host" / HOSTILE / "7"
    done = push(backend, folder, str(target))
    assert contents(target) == contents(folder)
    assert [path.name for path in target.parent.iterdir()] == ["7"]
    assert done.sent_bytes == done.total_bytes
    assert target.stat().st_mode & 0o777 == 0o700
    assert (target / "assignment.json").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_is_there_already_is_not_sent_again(backend: LocalBackend, folder: Path, tmp_path: Path) -> None:
    push(backend, folder, str(tmp_path / "target"))
    assert push(backend, folder, str(tmp_path / "target")).sent_bytes == 0


def test_a_folder_with_other_content_is_never_overwritten(backend: LocalBackend, folder: Path, tmp_path: Path) -> None:
    push(backend, folder, str(tmp_path / "target"))
    before = contents(folder)
    (folder / "assignment.json").write_text('{"records": 4}')
    with pytest.raises(HostError, match="exists with other content"):
        push(backend, folder, str(tmp_path / "target"))
    assert contents(tmp_path / "target") == before


@pytest.mark.parametrize("hurt", ["assignment.json", "deep er/tokens.safetensors"])
def test_a_damaged_copy_is_replaced_where_its_owner_is_the_same_or_is_gone(
    backend: LocalBackend, folder: Path, tmp_path: Path, hurt: str
) -> None:
    target = tmp_path / "host" / "1"
    push(backend, folder, str(target))
    (target / hurt).write_bytes(b"\xff{")
    with pytest.raises(HostError, match="exists with other content"):
        push(backend, folder, str(target))
    push(backend, folder, str(target), owner="assignment.json")
    assert contents(target) == contents(folder)
    assert [path.name for path in target.parent.iterdir()] == ["1"]


def test_another_s_copy_is_not_taken_for_a_damaged_one(backend: LocalBackend, folder: Path, tmp_path: Path) -> None:
    push(backend, folder, str(tmp_path / "target"))
    (folder / "assignment.json").write_text('{"records": 4}')
    with pytest.raises(HostError, match="exists with other content"):
        push(backend, folder, str(tmp_path / "target"), owner="assignment.json")


def test_an_interrupted_push_leaves_no_target_and_goes_on_inside_the_file(
    backend: LocalBackend, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "host" / "target"
    leave_half(folder, target)
    assert not target.exists()
    done = push(backend, folder, str(target))
    assert contents(target) == contents(folder)
    assert done.sent_bytes < done.total_bytes - 2_000_000


def test_a_wrong_byte_in_what_was_left_is_repaired(backend: LocalBackend, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "host" / "target"
    part = leave_half(folder, target) / "deep er" / "tokens.safetensors"
    left = bytearray(part.read_bytes())
    left[1000] ^= 1
    part.write_bytes(left)
    push(backend, folder, str(target))
    assert contents(target) == contents(folder)


def test_a_folder_that_another_push_s_name_leads_away_from_is_refused(
    backend: LocalBackend, folder: Path, tmp_path: Path
) -> None:
    target, elsewhere = tmp_path / "host" / "target", tmp_path / "elsewhere"
    aside = leave_half(folder, target)
    aside.rename(elsewhere)
    before = contents(elsewhere)
    aside.symlink_to(elsewhere)
    with pytest.raises(HostError, match="not a folder of this user alone"):
        push(backend, folder, str(target))
    assert contents(elsewhere) == before


def test_a_folder_that_others_can_write_to_takes_no_push(backend: LocalBackend, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "host" / "target"
    leave_half(folder, target).chmod(0o777)
    with pytest.raises(HostError, match="not a folder of this user alone"):
        push(backend, folder, str(target))


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_file_that_is_no_regular_one_is_neither_followed_nor_waited_for(
    backend: LocalBackend, folder: Path, tmp_path: Path, kind: str
) -> None:
    target, victim = tmp_path / "host" / "target", tmp_path / "victim"
    victim.write_bytes(b"somebody's own")
    left = leave_half(folder, target) / "assignment.json"
    left.unlink()
    if kind == "link":
        left.symlink_to(victim)
    else:
        os.mkfifo(left)
    with pytest.raises(HostError, match="not a regular file"):
        push(backend, folder, str(target))
    assert victim.read_bytes() == b"somebody's own"


def test_a_fifo_in_the_folder_that_is_replaced_holds_nobody(
    backend: LocalBackend, folder: Path, tmp_path: Path
) -> None:
    push(backend, folder, str(tmp_path / "target"))
    (tmp_path / "target" / "assignment.json").unlink()
    os.mkfifo(tmp_path / "target" / "assignment.json")
    with pytest.raises(HostError, match="not a regular file"):
        push(backend, folder, str(tmp_path / "target"), owner="assignment.json")


def test_a_pushed_folder_that_is_shared_has_the_modes_of_the_login(
    backend: LocalBackend, folder: Path, tmp_path: Path
) -> None:
    push(backend, folder, str(tmp_path / "target"), shared=True)
    umask = os.umask(0o077)
    os.umask(umask)
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o777 & ~umask
    assert (tmp_path / "target" / "assignment.json").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_path_that_leaves_the_folder_is_refused(backend: LocalBackend, tmp_path: Path) -> None:
    process: Process = backend.open([sys.executable, "-I", "-S", "-c", SOURCE])
    dialogue = _Dialogue(process)
    dialogue.say({"target": str(tmp_path / "t"), "files": [{"path": "../x", "size": 0, "sha256": ""}]})
    with pytest.raises(HostError, match="plain relative paths"):
        dialogue.hear()
    process.close()


def test_what_is_not_a_folder_is_a_users_mistake(backend: LocalBackend, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        push(backend, tmp_path / "missing", "/nowhere")
