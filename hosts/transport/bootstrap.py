"""The program that a host's Python runs first (`python -I -S -c SOURCE`): take the payload, become the verb.

Runs on the host; the laptop imports this module only for the payload's digest and for `header`. It reads one line from
stdin (the four words of `header`) and answers with one hello line, in JSON. If the host lacks the payload or its copy
is damaged, it reads a tar.gz (a line with the size, then the bytes). Then it replaces itself by `python -m remote
VERB`, which reads on from the same stdin. Standard library only, and syntax that any Python parses, so that a Python
which is too old can still report its version. Every call pays for this module's imports and text: `json` and `hashlib`
would cost it 9 ms of CPU, so they and the modules that only `place` needs are imported where they are needed.

A user who can write to a folder on the way to the payload could replace the payload. Each of these folders, up to the
root, must therefore belong to this user or to root, and nobody else may write to it unless it is sticky, as /tmp is.
"""

import os
import stat
import sys

TYPE_CHECKING = False  # importing typing would cost milliseconds
if TYPE_CHECKING:
    import hashlib  # noqa: F401
    from collections.abc import Callable, Iterable  # noqa: F401
    from typing import NoReturn  # noqa: F401

MODULES = (".py", ".pyc", ".so")
"""Endings of the files that Python imports as modules. A folder can be a module too."""


class Refused(Exception):
    """A workdir or payload that another user could change."""


def tree_digest(root, accepts=None):  # type: (str, Callable[[os.stat_result], bool] | None) -> str
    """Return a digest of names and contents of the files below `root`, bytecode excluded (blake2b, 32 hex digits).

    If `accepts` is given, raises Refused for anything that is neither a file nor a folder, and for each file, bytecode
    included, that `accepts` rejects.
    """
    return digest_of((relative, _file_digest(path)) for relative, path in files_below(root, "", accepts))


def digest_of(files):  # type: (Iterable[tuple[str, bytes]]) -> str
    """Return the digest of a tree from the names of its files and the digests of their contents, in order."""
    blake2b = _blake2b()
    digest = blake2b(digest_size=16)
    for name, content in files:
        digest.update(os.fsencode(name) + b"\0" + content)
    return digest.hexdigest()


def content_digest(content):  # type: (bytes) -> bytes
    """Return the digest of one file's content, for `digest_of`."""
    return _blake2b()(content).digest()


def _blake2b():  # type: () -> type[hashlib.blake2b]
    """Return Python's own BLAKE2; `hashlib` would load OpenSSL's library first."""
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    return blake2b


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


def _file_digest(path):  # type: (str) -> bytes
    """Return `content_digest` of a file. Python's buffers would cost more than reading such small files."""
    digest = _blake2b()()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while True:
            content = os.read(descriptor, 1 << 18)
            if not content:
                return digest.digest()
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


def header(nonce, digest, verb, workdir):  # type: (str, str, str, str) -> bytes
    """Return the line that `main` reads: four words, of which the workdir may have any character and is sent in hex."""
    return ("%s %s %s %s\n" % (nonce, digest, verb, workdir.encode("utf-8").hex())).encode("ascii")


def greet(nonce, have_payload):  # type: (str, bool) -> bool
    """Write the hello and return True, so that a caller can remember that it was written."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    hello = '{"type": "hello", "nonce": "%s", "python": "%s", "have_payload": %s}\n'
    os.write(1, (hello % (nonce, version, "true" if have_payload else "false")).encode("ascii"))
    return True


def fail(kind, message, remedy):  # type: (str, str, str) -> NoReturn
    """Write an error and exit."""
    import json

    line = json.dumps({"type": "error", "kind": kind, "message": message, "remedy": remedy})
    os.write(1, (line + "\n").encode("ascii"))
    sys.exit(1)


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
    nonce, digest, verb, workdir = read_line().decode("ascii").rstrip("\n").split(" ")
    os.write(1, b"\n")  # the output of a .bashrc may have left a line open
    if sys.version_info < (3, 10):
        greet(nonce, True)
        version = ".".join(str(part) for part in sys.version_info[:3])
        message = "Python %s at %s is too old: Roost needs 3.10 or newer." % (version, sys.executable)
        fail("python", message, "Set `python` for this host.")
    os.environ["ROOST_UMASK"] = "%o" % os.umask(0o077)  # for files that others may read: delivered shards
    payloads = os.path.join(os.path.expanduser(bytes.fromhex(workdir).decode("utf-8")), "payloads")
    target = os.path.join(payloads, digest)
    greeted = False
    try:
        refuse_strangers(target)
        have_payload = is_whole(target, digest)
        greeted = greet(nonce, have_payload)
        if not have_payload:
            archive = read_exactly(int(read_line()))
            os.makedirs(payloads, 0o700, exist_ok=True)
            place(payloads, digest, archive)
            refuse_strangers(target)
        os.chdir(target)
    except Refused as error:
        greeted = greeted or greet(nonce, True)
        message = "%s, so another user could have replaced the payload below it. Nothing was run from there." % error
        remedy = "Set `workdir` to a folder that only you can write to, or type chmod go-w for that folder on the host."
        fail("workdir", message, remedy)
    except (OSError, ValueError) as error:
        greeted = greeted or greet(nonce, True)
        message = "The payload could not be placed in %s: %s." % (payloads, error)
        fail("workdir", message, "Free space, or set `workdir` to a folder that can be written.")
    os.environ["PYTHONUTF8"] = "1"
    os.environ.pop("PYTHONSAFEPATH", None)  # with it, Python would not import the payload from the current folder
    os.execv(sys.executable, [sys.executable, "-m", "remote", verb])


if __name__ == "__main__":
    main()
