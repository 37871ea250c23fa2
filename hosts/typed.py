"""The command of this process, as the person typed it, for the laptop's trail and the hosts' trails.

Laptop's side. `session` sets the command, and `transport` sends it with every call. A process has only one command.
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
    """Return the operator, as `user@laptop`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def current() -> Typed:
    """Return the running command. It has no id if it changes no host."""
    return _current


def line(words: Sequence[str]) -> str:
    """Return a command line, quoted for a shell and without its secrets."""
    return shlex.join(harmless_words(words))


def begin(words: Sequence[str] | None = None) -> Typed:
    """Note and return the running command: `words`, or this process's own command line."""
    global _current  # noqa: PLW0603  one process is one command
    _current = Typed(id=secrets.token_hex(6), words=line(sys.argv[1:] if words is None else words))
    return _current


def forget() -> None:
    """Note that the command has ended."""
    global _current  # noqa: PLW0603
    _current = Typed()
