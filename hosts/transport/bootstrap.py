"""The program that a host's Python runs first (`python -c SOURCE`): take the payload if it is missing, become the verb.

Runs on the host; the laptop imports it for `tree_digest` alone. Reads from stdin one JSON line
{nonce, digest, size, workdir, verb}, answers one hello line, reads `size` bytes of tar.gz if it lacks the payload
(or holds it damaged), then replaces itself by `python -m remote VERB`, which reads on from the same stdin.
Standard library only, and syntax that any Python parses, so that one which is too old can still say so.
"""

import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import time


def tree_digest(root):  # type: (str) -> str
    """Digest of the files below `root` by name and content (sha256, 32 hex digits); bytecode does not count."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(folder, name)
            with open(path, "rb") as stream:
                content = hashlib.sha256(stream.read()).hexdigest()
            relative = os.path.relpath(path, root).replace(os.sep, "/")
            digest.update(json.dumps([relative, content]).encode("ascii"))
    return digest.hexdigest()[:32]


def read_line():  # type: () -> bytes
    """One line from stdin, byte by byte: what follows it belongs to the verb."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(75)
        line += byte
    return line


def read_exactly(size):  # type: (int) -> bytes
    """`size` bytes from stdin; exits where the laptop hangs up before."""
    chunks = []
    while size:
        chunk = os.read(0, min(size, 1 << 20))
        if not chunk:
            sys.exit(75)
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def say(message):  # type: (dict[str, object]) -> None
    """One protocol line."""
    os.write(1, (json.dumps(message) + "\n").encode("ascii"))


def place(payloads, digest, archive):  # type: (str, str, bytes) -> None
    """Unpack `archive` aside and rename it to `payloads/<digest>`; a damaged payload of that name is set aside."""
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
    if tree_digest(os.path.join(aside, "remote")) != digest:
        shutil.rmtree(aside)
        raise ValueError("the payload arrived damaged")
    target = os.path.join(payloads, digest)
    if os.path.lexists(target) and tree_digest(os.path.join(target, "remote")) != digest:
        os.rename(target, "%s.damaged-%d-%s" % (target, time.time(), own))
    try:
        os.rename(aside, target)
    except OSError:  # another operator placed the same payload in this moment
        shutil.rmtree(aside)
    link = os.path.join(payloads, ".current-%s" % own)
    os.symlink(digest, link)
    os.rename(link, os.path.join(payloads, "current"))


def main():  # type: () -> None
    """Say hello, place the payload where it is missing, become the verb."""
    header = json.loads(read_line().decode("utf-8"))
    version = ".".join(str(part) for part in sys.version_info[:3])
    hello = {"type": "hello", "nonce": header["nonce"], "python": version, "have_payload": True}
    os.write(1, b"\n")  # what a .bashrc printed may have left a line open
    if sys.version_info < (3, 10):
        say(hello)
        message = "Python %s at %s is too old: Roost needs 3.10 or newer." % (version, sys.executable)
        say({"type": "error", "kind": "python", "message": message, "remedy": "Set `python` for this host."})
        sys.exit(1)
    os.environ["ROOST_UMASK"] = "%o" % os.umask(0o077)  # for what others may read: delivered shards
    payloads = os.path.join(os.path.expanduser(header["workdir"]), "payloads")
    target = os.path.join(payloads, header["digest"])
    hello["have_payload"] = tree_digest(os.path.join(target, "remote")) == header["digest"]
    say(hello)
    try:
        if not hello["have_payload"]:
            archive = read_exactly(header["size"])
            os.makedirs(payloads, 0o700, exist_ok=True)
            place(payloads, header["digest"], archive)
        os.chdir(target)
    except (OSError, ValueError) as error:
        message = "The payload could not be placed in %s: %s." % (payloads, error)
        remedy = "Free space, or set `workdir` to a folder that can be written."
        say({"type": "error", "kind": "workdir", "message": message, "remedy": remedy})
        sys.exit(1)
    os.environ["PYTHONUTF8"] = "1"
    os.execv(sys.executable, [sys.executable, "-m", "remote", header["verb"]])


if __name__ == "__main__":
    main()
