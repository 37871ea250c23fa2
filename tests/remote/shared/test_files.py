"""What another user may have put where Roost left a file: nothing that is no regular file of our own is read."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from remote.shared.errors import ForeignFileError, HostError
from remote.shared.files import is_own, open_own, read_own
from tests.attacks.stranger import UID, needs_root


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    (path.parent / "elsewhere").write_text("{}")
    path.symlink_to(path.parent / "elsewhere")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def folder(path: Path) -> None:
    path.mkdir()


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("put", [fifo, link, loop, folder, listener], ids=lambda put: str(put.__name__))
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_APPEND])
def test_a_special_file_is_refused_at_once_and_not_changed(tmp_path: Path, put: object, flags: int) -> None:
    path = tmp_path / "state.json"
    put(path)  # type: ignore[operator]
    with pytest.raises(ForeignFileError, match=r"state\.json is .*, so it is not Roost's\. Find out who"):
        os.close(open_own(path, flags))
    assert not is_own(path)
    assert [p.read_text() for p in tmp_path.glob("elsewhere")] in ([], ["{}"])


@needs_root
def test_devices_and_files_of_another_user_are_refused(tmp_path: Path) -> None:
    device, other = tmp_path / "device", tmp_path / "other"
    os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    other.write_text("{}")
    os.chown(other, UID, UID)
    with pytest.raises(ForeignFileError, match="no regular file"):
        read_own(device)
    with pytest.raises(HostError, match=f"a file of user {UID}"):
        read_own(other)
    assert read_own(other, owner=UID) == b"{}"


def test_a_file_without_end_is_read_to_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ForeignFileError, match="longer than 100 bytes"):
        read_own(path, most=100)
    with pytest.raises(FileNotFoundError):
        read_own(tmp_path / "none")
