"""The program that a host's Python runs first (`python -I -S -c SOURCE`): take the payload, become the verb.

Runs on the host; the laptop imports this module only for the payload's digest. It reads one JSON line {nonce, digest,
workdir, verb} from stdin and answers with one hello line. If the host lacks the payload or its copy is damaged, it
reads a tar.gz (a line with the size, then the bytes). Then it replaces itself by `python -m remote VERB`, which reads
on from the same stdin. Standard library only, and syntax that any Python parses, so that a Python which is too old can
still report its version. Imports cost every call some milliseconds, so modules that only `place` needs are imported
there.

A user who can write to a folder on the way to the payload could replace the payload. Each of these folders, up to the
root, must therefore belong to this user or to root, and nobody else may write to it unless it is sticky, as /tmp is.
"""

import hashlib
import json
import os
import stat
import sys

TYPE_CHECKING = False  # importing typing would cost milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable  # noqa: F401

MODULES = (".py", ".pyc", ".so")
"""Endings of the files that Python imports as modules. A folder can be a module too."""


class Refused(Exception):
    """A workdir or payload that another user could change."""


def tree_digest(root, accepts=None):  # type: (str, Callable[[os.stat_result], bool] | None) -> str
    """Return a digest of names and contents of the files below `root`, bytecode excluded (sha256, 32 hex digits).

    If `accepts` is given, raises Refused for anything that is neither a file nor a folder, and for each file, bytecode
    included, that `accepts` rejects.
    """
    return digest_of((relative, _content_digest(path)) for relative, path in files_below(root, "", accepts))


def digest_of(files):  # type: (Iterable[tuple[str, str]]) -> str
    """Return the digest of a tree from the names of its files and the digests of their contents, in order."""
    digest = hashlib.sha256()
    for entry in files:
        digest.update(json.dumps(entry).encode("ascii"))
    return digest.hexdigest()[:32]


def files_below(folder, prefix, accepts):
    # type: (str, str, Callable[[os.stat_result], bool] | None) -> list[tuple[str, str]]
    """Return the files below `folder` in order, as (relative name, path). Every call waits for this."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    if accepts is not None:
        for entry in found:
            status = entry.stat(follow_symlinks=False)
            if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)) or not accepts(status):
                raise Refused(entry.path)
    files = [] if prefix.endswith("__pycache__/") else [(prefix + one.name, one.path) for one in found if one.is_file()]
    for entry in found:
        if entry.is_dir(follow_symlinks=False) and (accepts is not None or entry.name != "__pycache__"):
            files += files_below(entry.path, prefix + entry.name + "/", accepts)
    return files


def _content_digest(path):  # type: (str) -> str
    """Return the digest of one file, read without Python's buffers, which cost more than reading such small files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        digest = hashlib.sha256()
        while True:
            content = os.read(descriptor, 1 << 20)
            if not content:
                return digest.hexdigest()
            digest.update(content)
    finally:
        os.close(descriptor)


def is_whole(target, digest):  # type: (str, str) -> bool
    """Return whether the folder `target` holds this payload, undamaged, and nothing else that Python could import.

    The digest covers every file except bytecode, which Python writes later. All files must belong to this user or root.
    """
    root = os.path.join(target, "remote")
    if not os.path.isdir(root):
        return False
    for name in os.listdir(target):  # a core dump beside `remote` does no harm, a module does
        found = os.lstat(os.path.join(target, name))
        if not is_ours(found) or (name != "remote" and (name.endswith(MODULES) or not stat.S_ISREG(found.st_mode))):
            return False
    try:
        return tree_digest(root, is_ours) == digest
    except Refused:
        return False


def is_ours(found):  # type: (os.stat_result) -> bool
    """Return whether only this user and root can change the file that `found` describes."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def refuse_strangers(path):  # type: (str) -> None
    """Raise Refused if `path`, or a folder or link on the way to it, is somebody else's or writable by others."""
    for way in (os.path.abspath(path), os.path.realpath(path)):
        while way != os.path.dirname(way):
            if os.path.lexists(way):
                _refuse(way, os.lstat(way))
            way = os.path.dirname(way)  # noqa: PLW2901
        _refuse(way, os.lstat(way))


def _refuse(path, found):  # type: (str, os.stat_result) -> None
    mode = found.st_mode
    if found.st_uid not in (0, os.geteuid()):
        raise Refused("%s belongs to another user (uid %d)" % (path, found.st_uid))
    if stat.S_ISLNK(mode) or (mode & stat.S_ISVTX and stat.S_ISDIR(mode)):
        return  # others cannot rename this user's files in a sticky folder
    if mode & 0o002 or (mode & 0o020 and found.st_gid not in (0, _own_group())):
        raise Refused("%s can be written to by other users (mode %o)" % (path, stat.S_IMODE(mode)))


def _own_group():  # type: () -> int
    """Return this user's private group, which has the user's name; -1 if there is none."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return -1
    return user.pw_gid if group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name} else -1


def read_line():  # type: () -> bytes
    """Return one line from stdin, read byte by byte, because the bytes after it belong to the verb."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(75)
        line += byte
    return line


def read_exactly(size):  # type: (int) -> bytes
    """Return `size` bytes from stdin; exits if stdin ends before."""
    chunks = []
    while size:
        chunk = os.read(0, min(size, 1 << 20))
        if not chunk:
            sys.exit(75)
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def say(message):  # type: (dict[str, object]) -> bool
    """Write one protocol line and return True, so that a caller can remember that the line was written."""
    os.write(1, (json.dumps(message) + "\n").encode("ascii"))
    return True


def place(payloads, digest, archive):  # type: (str, str, bytes) -> None
    """Unpack `archive` aside and rename it to `payloads/<digest>`; a damaged payload of that name is set aside."""
    import io
    import shutil
    import tarfile
    import time

    own = "%d-%s" % (os.getpid(), os.urandom(4).hex())  # hosts may share a home, and containers' pids are alike
    aside = os.path.join(payloads, ".aside-%s-%s" % (own, digest))
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as packed:
        for member in packed:
            if not member.isfile() or member.name.startswith("/") or ".." in member.name.split("/"):
                raise ValueError("the payload holds %r" % member.name)
            path = os.path.join(aside, member.name)
            if not os.path.isdir(os.path.dirname(path)):
                os.makedirs(os.path.dirname(path), 0o700)
            with open(path, "wb") as stream:
                shutil.copyfileobj(packed.extractfile(member), stream)  # type: ignore[arg-type]
    if not is_whole(aside, digest):
        shutil.rmtree(aside)
        raise ValueError("the payload arrived damaged")
    target = os.path.join(payloads, digest)
    if os.path.lexists(target) and not is_whole(target, digest):
        os.rename(target, "%s.damaged-%d-%s" % (target, time.time(), own))
    try:
        os.rename(aside, target)
    except OSError:  # another operator placed the same payload in this moment
        shutil.rmtree(aside)
    link = os.path.join(payloads, ".current-%s" % own)
    os.symlink(digest, link)
    os.rename(link, os.path.join(payloads, "current"))


def main():  # type: () -> None
    """Say hello, place the payload if it is missing, and become the verb."""
    header = json.loads(read_line().decode("utf-8"))
    version = ".".join(str(part) for part in sys.version_info[:3])
    hello = {"type": "hello", "nonce": header["nonce"], "python": version, "have_payload": True}
    os.write(1, b"\n")  # the output of a .bashrc may have left a line open
    if sys.version_info < (3, 10):
        say(hello)
        message = "Python %s at %s is too old: Roost needs 3.10 or newer." % (version, sys.executable)
        say({"type": "error", "kind": "python", "message": message, "remedy": "Set `python` for this host."})
        sys.exit(1)
    os.environ["ROOST_UMASK"] = "%o" % os.umask(0o077)  # for files that others may read: delivered shards
    payloads = os.path.join(os.path.expanduser(header["workdir"]), "payloads")
    target = os.path.join(payloads, header["digest"])
    greeted = False
    try:
        refuse_strangers(target)
        hello["have_payload"] = is_whole(target, header["digest"])
        greeted = say(hello)
        if not hello["have_payload"]:
            archive = read_exactly(int(read_line()))
            os.makedirs(payloads, 0o700, exist_ok=True)
            place(payloads, header["digest"], archive)
            refuse_strangers(target)
        os.chdir(target)
    except Refused as error:
        greeted = greeted or say(hello)
        message = "%s, so another user could have replaced the payload below it. Nothing was run from there." % error
        remedy = "Set `workdir` to a folder that only you can write to, or type chmod go-w for that folder on the host."
        say({"type": "error", "kind": "workdir", "message": message, "remedy": remedy})
        sys.exit(1)
    except (OSError, ValueError) as error:
        greeted = greeted or say(hello)
        message = "The payload could not be placed in %s: %s." % (payloads, error)
        remedy = "Free space, or set `workdir` to a folder that can be written."
        say({"type": "error", "kind": "workdir", "message": message, "remedy": remedy})
        sys.exit(1)
    os.environ["PYTHONUTF8"] = "1"
    os.environ.pop("PYTHONSAFEPATH", None)  # with it, Python would not import the payload from the current folder
    os.execv(sys.executable, [sys.executable, "-m", "remote", header["verb"]])


if __name__ == "__main__":
    main()
