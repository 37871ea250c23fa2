"""The command that this process runs, as the person typed it: for the laptop's trail and, with every call, the hosts'.

Laptop's side. `session` sets it, `transport` sends it; there is one a process.
"""

from __future__ import annotations

import getpass
import secrets
import shlex
import socket
import sys
from collections.abc import Sequence

from remote.shared.messages.envelope import Typed
from remote.shared.redact import harmless_words

_current = Typed()


def operator() -> str:
    """Who types: `user@laptop`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def current() -> Typed:
    """Return the command that runs; one without an id if nothing that changes a host was typed."""
    return _current


def line(words: Sequence[str]) -> str:
    """Return a command line as a shell takes it, without its secrets."""
    return shlex.join(harmless_words(words))


def begin(words: Sequence[str] | None = None) -> Typed:
    """Note that this command runs now, by default the one that this process was started with, and return it."""
    global _current  # noqa: PLW0603  one process is one command
    _current = Typed(id=secrets.token_hex(6), words=line(sys.argv[1:] if words is None else words))
    return _current


def forget() -> None:
    """The command has ended."""
    global _current  # noqa: PLW0603
    _current = Typed()
