"""The API key of one start of a server: only a user who can read the server's folder can talk to the server.

Runs on the host. The supervisor issues a new key for every start and removes it after the end. SGLang reads the key
from a `--config` file; Roost's clients and people's (`curl -H @FILE`) read it from a file that holds the HTTP header.
Both files are readable by their owner alone, and the key is in no argument list and in no environment of a server.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from remote.shared.errors import HostError
from remote.shared.files import open_own, read_own, write_whole
from remote.shared.paths import ServerPaths

HEADER = "Authorization"
_SCHEME = "Bearer "
_BYTES = 32


def issue(paths: ServerPaths, config: Mapping[str, object], *, closes_admin: bool) -> list[str]:
    """Write both files for a new start and return the secrets that they hold.

    `config` is the further content of the configuration file. With `closes_admin`, the endpoints that change a running
    server (weights, caches, profiling) get a second key. That key is kept nowhere else, so nobody can use them.
    """
    key = secrets.token_hex(_BYTES)
    admin = {"admin-api-key": secrets.token_hex(_BYTES)} if closes_admin else {}
    write_whole(paths.config, json.dumps({**config, "api-key": key, **admin}, default=str).encode())
    write_whole(paths.authorization, f"{HEADER}: {_SCHEME}{key}\n".encode())
    return [key, *admin.values()]


def withdraw(paths: ServerPaths) -> None:
    """Remove both files, after the end of the server that knew the key."""
    paths.config.unlink(missing_ok=True)
    paths.authorization.unlink(missing_ok=True)


def headers(paths: ServerPaths) -> dict[str, str]:
    """Return the HTTP headers for requests to the server; raises HostError if its key cannot be read."""
    try:
        name, _, value = read_own(paths.authorization).decode().strip().partition(": ")
    except OSError as error:
        raise HostError(
            f"The key of server {paths.root.name!r} cannot be read from {paths.authorization} ({error.strerror}).",
            remedy="Start the server again: inv restart.",
        ) from error
    return {name: value}


def bare(paths: ServerPaths) -> str:
    """Return the key alone, for clients that build the header themselves."""
    return headers(paths)[HEADER].removeprefix(_SCHEME)


class Mask:
    """Overwrites secrets that a server printed into its own log, in place and with the same number of characters.

    SGLang's first line holds every argument. Positions in the log stay the same for anyone who follows it.
    """

    def __init__(self, log: Path, hidden: list[str]) -> None:
        self._log = log
        self._hidden = [secret.encode() for secret in hidden]
        self._longest = max(map(len, self._hidden), default=1)
        self._looked_to = 0

    def apply(self) -> None:
        """Mask what was appended since the last call; if there is no log yet, the next call tries again."""
        try:
            descriptor = open_own(self._log, os.O_RDWR)
        except OSError:
            return
        try:
            while chunk := os.pread(descriptor, 1 << 20, start := max(0, self._looked_to - self._longest + 1)):
                if start + len(chunk) <= self._looked_to:
                    return
                self._cover(descriptor, chunk, start)
                self._looked_to = start + len(chunk)
        finally:
            os.close(descriptor)

    def _cover(self, descriptor: int, chunk: bytes, start: int) -> None:
        for secret in self._hidden:
            found = chunk.find(secret)
            while found >= 0:
                os.pwrite(descriptor, b"*" * len(secret), start + found)
                found = chunk.find(secret, found + len(secret))
