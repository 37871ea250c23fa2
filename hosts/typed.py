"""The command that this process runs, as the person typed it: for the laptop's trail and, with every call, the hosts'.

Laptop's side. `session` sets it, `transport` sends it; there is one a process.
"""

from __future__ import annotations

import getpass
import re
import secrets
import shlex
import socket
import sys
from collections.abc import Sequence

from remote.shared.messages.envelope import Typed
from remote.shared.redact import HIDDEN, is_secret, without_credentials

_WEB_PATH = re.compile(r"(https?://[^/\s?#]+)[/?#]\S*")
"""The path of a webhook is its secret."""

_current = Typed()


def operator() -> str:
    """Who types: `user@laptop`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def current() -> Typed:
    """Return the command that runs; one without an id if nothing that changes a host was typed."""
    return _current


def begin(words: Sequence[str] | None = None) -> Typed:
    """Note that this command runs now, by default the one that this process was started with, and return it."""
    global _current  # noqa: PLW0603  one process is one command
    _current = Typed(id=secrets.token_hex(6), words=shlex.join(_harmless(sys.argv[1:] if words is None else words)))
    return _current


def forget() -> None:
    """The command has ended."""
    global _current  # noqa: PLW0603
    _current = Typed()


def _harmless(words: Sequence[str]) -> list[str]:
    """The words without the values of options that name a secret, and without credentials in addresses."""
    shown, hides = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = word.startswith("--") and is_secret(name.lstrip("-").replace("-", "_"))
        if hides and not word.startswith("--"):
            shown.append(HIDDEN)
        elif secret and equals:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(_WEB_PATH.sub(rf"\1/{HIDDEN}", without_credentials(word)))
        hides = secret and not equals
    return shown
