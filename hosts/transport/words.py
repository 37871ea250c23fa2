"""Quotes a program and its arguments so that every login shell reads them alike: sh, bash, zsh, dash, csh, tcsh, fish.

An SSH server gives the command to the user's login shell as one string. Shells agree on single quotes around printable
ASCII without `'`, backslash and `!`; everything else travels as octal numbers that `/bin/sh` turns back into bytes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hosts.inventory.model import Host

_BARE = re.compile(r"[A-Za-z0-9_./-][A-Za-z0-9_./:,@+-]*")
_QUOTABLE = re.compile(r"[ -~]*")
_ODD = set("'\\!")
_OFF_THE_PATH = (
    "import sys;sys.path[:]=[p for p in sys.path if p];"
    'import os;_here=os.path.exists(".") and os.getcwd();sys.path[:]=[p for p in sys.path if p not in (".",_here)];'
)


def remote_command(argv: Sequence[str]) -> str:
    """Return the command line for a login shell; each argument arrives as it is, whatever it contains."""
    if all(_QUOTABLE.fullmatch(word) and not _ODD & set(word) for word in argv):
        return " ".join(word if _BARE.fullmatch(word) else f"'{word}'" for word in argv)
    program = f"exec {shlex.join(argv)}".encode("utf-8", "surrogateescape")
    octal = "".join(f"\\0{byte:03o}" for byte in program)
    return f'/bin/sh -c \'eval "$(printf "%b" "{octal}")"\''


def python_program(host: Host, source: str, *options: str) -> list[str]:
    """Return the argv that runs `source` under the host's Python, with the host's `exec` prefix in front.

    `options` are Python's own (`-I`, `-S`). `~/` in `python` is the home directory of the user on the host, or inside
    the container that `exec` enters.
    """
    return [*shlex.split(host.exec), *_python(host.python), *options, "-c", one_line(source)]


def one_line(source: str) -> str:
    """Return a Python program of one line, without anything that shells disagree on, that does what `source` does.

    The program first removes the current folder from the module path, where it may stand as an empty entry (`python
    -c`, `PYTHONPATH=:…`) or by name.
    """
    return f'{_OFF_THE_PATH}exec(bytes.fromhex("{source.encode().hex()}"))'


def _python(python: str) -> list[str]:
    if not python.startswith("~/"):
        return [python]
    return ["/bin/sh", "-c", 'exec "$HOME/$0" "$@"', python.removeprefix("~/")]
