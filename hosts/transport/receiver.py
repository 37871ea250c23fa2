"""The far end of a push: takes one folder from stdin and makes it appear whole, or not at all.

Runs on the host as `python -I -S -c SOURCE`, with the source that `hosts/transport/push.py` sends, so it needs neither
a payload nor a package. Writes only TARGET and `.aside-push-*` beside it. Both must be this user's own: no link is
followed and no FIFO waited for. Protocol, one JSON line unless said otherwise:

    <- {"target": PATH, "files": [{"path", "size", "sha256"}]}; with "shared": true, modes follow the login's umask
    -> {"state": "have"} and the end, or {"state": "need", "prefixes": [{"size", "sha256"}]} (what an earlier push left)
    <- {"starts": [OFFSET]}, then the raw bytes of each file from its offset on, in order
    -> {"state": "placed"}; anywhere: {"state": "error", "message", "remedy"}
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

BLOCK = 1 << 20


class Refusal(Exception):
    """A sentence for the person who pushes, and what to do about it."""


def say(**message: Any) -> None:
    """One protocol line."""
    os.write(1, json.dumps(message).encode("ascii") + b"\n")


def opened(path: Path, flags: int = os.O_RDONLY) -> int:
    """The descriptor of a regular file; another user may have put a link, a FIFO or a device there."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise Refusal(f"{path} is not a regular file.", "Find out who put it there, and remove it.")


def digest_of(path: Path, size: int) -> hashlib._Hash:
    """The sha256 of the first `size` bytes of `path`, ready for more."""
    digest = hashlib.sha256()
    with open(opened(path), "rb") as stream:
        while size and (block := stream.read(min(BLOCK, size))):
            digest.update(block)
            size -= len(block)
    return digest


def is_same(root: Path, files: list[dict[str, Any]]) -> bool:
    """Whether `root` holds exactly these files with exactly these bytes."""
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
    return found == {file["path"] for file in files} and all(
        (root / file["path"]).stat().st_size == file["size"]
        and digest_of(root / file["path"], file["size"]).hexdigest() == file["sha256"]
        for file in files
    )


def is_damaged(root: Path, files: list[dict[str, Any]], owner: str) -> bool:
    """Whether `root` is a damaged copy of what is pushed, and not somebody else's.

    Its file `owner`, JSON that says whose it is, is the same as the one that is pushed, or cannot be read any more.
    """
    path = root / owner
    try:
        with open(opened(path), "rb") as stream:
            json.load(stream)
    except (OSError, ValueError):
        return True
    size = path.stat().st_size
    announced = [file for file in files if file["path"] == owner and file["size"] == size]
    return any(digest_of(path, size).hexdigest() == file["sha256"] for file in announced)


def prefix_of(path: Path) -> dict[str, Any]:
    """What an interrupted push left of one file: its size, and the digest that decides whether it is kept."""
    size = path.stat().st_size if path.exists() else 0
    return {"size": size, "sha256": digest_of(path, size).hexdigest() if size else ""}


def receive_file(path: Path, file: dict[str, Any], start: int) -> None:
    """Append the bytes from stdin to the kept prefix; the whole file must have the announced digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(opened(path, os.O_RDWR | os.O_CREAT), "r+b") as stream:
        stream.truncate(start)
        stream.seek(start)
        digest = digest_of(path, start)
        left = file["size"] - start
        while left:
            block = os.read(0, min(BLOCK, left))
            if not block:
                raise Refusal("The push was cut off.", "Run it again: it goes on where it stopped.")
            stream.write(block)
            digest.update(block)
            left -= len(block)
        stream.flush()
        if digest.hexdigest() != file["sha256"]:
            stream.truncate(0)
            raise Refusal(f"{file['path']} arrived with other bytes than were sent.", "Run it again.")
        os.fsync(stream.fileno())


def fsync_folder(path: Path) -> None:
    """Make the names in `path` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_own(folder: Path) -> None:
    """Make a folder that nobody else can write to, or find the one that an earlier push made."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Refusal(f"{folder} is not a folder of this user alone.", "Find out who put it there, and remove it.")


def lock(path: Path) -> None:
    """Hold `path` against a second push of the same folder; the lock ends with this process."""
    descriptor = opened(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Refusal("Another push of this folder is under way.", "Wait for it to end.") from error


def checked(file: dict[str, Any]) -> dict[str, Any]:
    """The file, if its path stays below the folder."""
    parts = file["path"].split("/")
    if file["path"].startswith("/") or not all(parts) or ".." in parts or "." in parts:
        raise Refusal(f"The push names the file {file['path']!r}.", "Use plain relative paths.")
    return file


def read_line() -> dict[str, Any]:
    """One JSON line, byte by byte: what follows it may be raw."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise Refusal("The push was cut off.", "Run it again: it goes on where it stopped.")
        line += byte
    message: dict[str, Any] = json.loads(line)
    return message


def receive(umask: int) -> None:
    """One push, from its first line to its last; `umask` is the login's own."""
    request = read_line()
    if request.get("shared"):
        os.umask(umask)
    target = Path(request["target"]).expanduser()
    files = [checked(file) for file in request["files"]]
    target.parent.mkdir(parents=True, exist_ok=True)
    owner = request.get("owner", "")
    if os.path.lexists(target):
        if is_same(target, files):
            say(state="have")
            return
        if not owner or not is_damaged(target, files, owner):
            remedy = "Push to a new name, or remove it there first."
            raise Refusal(f"{target} exists with other content.", remedy)
    manifest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
    aside = target.with_name(f".aside-push-{target.name}-{manifest}")
    make_own(aside)
    lock_file = aside.with_name(f"{aside.name}.lock")
    lock(lock_file)
    say(state="need", prefixes=[prefix_of(aside / file["path"]) for file in files])
    for file, start in zip(files, read_line()["starts"], strict=True):
        receive_file(aside / file["path"], file, start)
    for folder, _, _ in os.walk(aside):
        fsync_folder(Path(folder))
    damaged = target.with_name(f".aside-damaged-{target.name}-{os.getpid()}")
    if os.path.lexists(target):
        target.rename(damaged)
    aside.chmod(0o777 & ~os.umask(0o077))
    aside.rename(target)
    shutil.rmtree(damaged, ignore_errors=True)
    lock_file.unlink()
    fsync_folder(target.parent)
    say(state="placed")


def main() -> int:
    """Run one push; every failure is one line for the laptop."""
    umask = os.umask(0o077)
    os.write(1, b"\n")  # what a .bashrc printed may have left a line open
    try:
        receive(umask)
    except Refusal as refusal:
        say(state="error", message=refusal.args[0], remedy=refusal.args[1])
        return 1
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        say(state="error", message=f"The folder could not be written: {error.strerror}{where}.", remedy="")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
