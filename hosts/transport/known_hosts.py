"""known_hosts files as OpenSSH reads them: several files, hashed names, patterns, `@cert-authority`, `@revoked`.

A line that cannot be read is skipped, and `inv doctor` names it. Skipping never makes a revoked key acceptable: a host
is refused if an unreadable `@revoked` line may be about it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

MARKERS = ("@cert-authority", "@revoked")
Judgement = Literal["known", "changed", "revoked", "new"]


@dataclass(frozen=True)
class Line:
    """One entry. `blob` is the public key as it travels on the wire; empty if the line could not be read."""

    path: Path
    number: int
    marker: str
    names: str
    kind: str
    blob: bytes
    problem: str = ""

    @property
    def place(self) -> str:
        """`FILE line N`."""
        return f"{self.path} line {self.number}"

    def is_for(self, name: str) -> bool:
        """Return whether this line is about a host that known_hosts calls `name` (`host` or `[host]:port`)."""
        if self.names.startswith("|1|"):
            return _hashed_match(self.names, name)
        matched = False
        for pattern in self.names.split(","):
            if pattern.startswith("!"):
                if _pattern(pattern[1:]).fullmatch(name):
                    return False
            elif _pattern(pattern).fullmatch(name):
                matched = True
        return matched


@dataclass(frozen=True)
class Verdict:
    """The verdict of known_hosts on a key, and the line that gives it (None for a new host)."""

    judgement: Judgement
    line: Line | None = None


@dataclass(frozen=True)
class KnownHosts:
    """The entries of several files, in order."""

    lines: tuple[Line, ...]

    @property
    def unreadable(self) -> list[Line]:
        """Return the lines that were skipped; `problem` says why."""
        return [line for line in self.lines if line.problem]

    def judge(self, names: Sequence[str], blob: bytes) -> Verdict:
        """Return the verdict on a host's public key.

        `names[0]` is the host's name. As in OpenSSH, a key that is stored for a later name (the host without its port)
        counts as known too, but a different key there does not count as a change.
        """
        spoken = [(name, line) for name in names for line in self.lines if line.is_for(name)]
        for _, line in spoken:
            if line.marker == "@revoked" and (line.problem or line.blob == blob):
                return Verdict("revoked", line)
        plain = [(name, line) for name, line in spoken if not line.marker and not line.problem]
        for _, line in plain:
            if line.blob == blob:
                return Verdict("known", line)
        other = next((line for name, line in plain if name == names[0]), None)
        return Verdict("changed", other) if other else Verdict("new")

    def kinds(self, names: Sequence[str]) -> list[str]:
        """Return the types of a host's known keys, without repetition. Its server is asked for these types first."""
        found = (line.kind for line in self._of(names, ""))
        return list(dict.fromkeys(found))

    def authority(self, names: Sequence[str]) -> Line | None:
        """Return the first `@cert-authority` line about this host."""
        return next(self._of(names, "@cert-authority"), None)

    def _of(self, names: Sequence[str], marker: str) -> Iterator[Line]:
        for line in self.lines:
            if line.marker == marker and not line.problem and any(line.is_for(name) for name in names):
                yield line


def read(paths: Sequence[Path]) -> KnownHosts:
    """Read the files; a missing file counts as empty, and an unreadable file as one unreadable line."""
    return KnownHosts(tuple(line for path in paths for line in _file(path)))


def names_of(hostname: str, port: int, alias: str = "") -> list[str]:
    """Return a server's names in known_hosts: its HostKeyAlias, or else `host` or `[host]:port`, then `host`."""
    if alias:
        return [alias.lower()]
    plain = hostname.lower()
    return [plain] if port == 22 else [f"[{plain}]:{port}", plain]


def hashed(name: str, salt: bytes) -> str:
    """Return `name` as `HashKnownHosts yes` stores it; `salt` is 20 random bytes."""
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def fingerprint(blob: bytes) -> str:
    """Return the fingerprint as `ssh-keygen -l` prints it: `SHA256:…`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _file(path: Path) -> tuple[Line, ...]:
    try:
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        return (Line(path, 0, "", "", "", b"", f"it may not be read: {error.strerror}"),)
    return _parsed(path, state.st_ino, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=64)
def _parsed(path: Path, _inode: int, _size: int, _changed: int) -> tuple[Line, ...]:
    """Return the lines of one file, which is read once for all hosts of a command."""
    if not path.is_file():  # UserKnownHostsFile /dev/null
        return ()
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return (Line(path, 0, "", "", "", b"", f"it may not be read: {error.strerror}"),)
    numbered = ((number, row.strip()) for number, row in enumerate(text.split("\n"), 1))
    return tuple(_line(path, number, row) for number, row in numbered if row and not row.startswith("#"))


def _line(path: Path, number: int, row: str) -> Line:
    words = row.split()
    marker = words.pop(0) if words[0].startswith("@") else ""
    # Padding: the marker and host of a line that is cut short are still read.
    names, kind, key = [*words, "", "", ""][:3]
    blob, problem = _decoded(kind, key)
    if marker and marker not in MARKERS:
        problem = f"unknown marker {marker!r}"
    elif not names:
        names, problem = "*", "it names no host"
    elif names.startswith("|1|") and not _is_hash(names):
        problem = "its hashed name is damaged"
    return Line(path, number, marker, names, kind, b"" if problem else blob, problem)


def _decoded(kind: str, key: str) -> tuple[bytes, str]:
    """Return the key's bytes, or why they cannot be read."""
    if not key:
        return b"", "it has no key"
    try:
        blob = base64.b64decode(key, validate=True)
        fields = _fields(blob)
    except (binascii.Error, ValueError, struct.error):
        return b"", "its key is no base64 or is cut short"
    if len(fields) < 2 or fields[0] != kind.encode(errors="replace"):
        return b"", f"its key is not of the type {kind[:40]!r}"
    return blob, ""


def _fields(blob: bytes) -> list[bytes]:
    """Return the strings in a public key; raises ValueError or struct.error if the key is cut short."""
    fields, at = [], 0
    while at < len(blob):
        (length,) = struct.unpack_from(">I", blob, at)
        at += 4 + length
        if at > len(blob):
            raise ValueError("cut short")
        fields.append(blob[at - length : at])
    return fields


def _is_hash(names: str) -> bool:
    parts = names.split("|")
    try:
        return len(parts) == 4 and all(base64.b64decode(part, validate=True) for part in parts[2:])
    except (binascii.Error, ValueError):
        return False


def _hashed_match(names: str, name: str) -> bool:
    if not _is_hash(names):
        return True  # the host of a damaged name is unknown; only an unreadable @revoked line asks this
    _, _, salt, digest = names.split("|")
    expected = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
    return hmac.compare_digest(expected, base64.b64decode(digest))


@lru_cache(maxsize=4096)
def _pattern(pattern: str) -> re.Pattern[str]:
    """Return a host pattern as a regular expression: `*` and `?` are wildcards, `[` is not."""
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern.lower()), re.DOTALL)
