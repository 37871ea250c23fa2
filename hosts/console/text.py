"""Makes text from hosts harmless to print, and shows their times by the laptop's clock."""

from __future__ import annotations

import codecs
import datetime
import io
import re
import sys
from collections.abc import Iterable

_ASCII = {"✓": "ok", "✗": "FAILED", "→": "->", "│": "|", "…": "...", "█": "#", "▏": "|", "\u00d7": "x", "\u2013": "-"}
"""Replacements of Roost's own marks for terminals that only know ASCII."""


_spoken: tuple[re.Pattern[str], str] | None = None
"""What Roost's sentences call the program instead of `inv`, if it is something else."""


def speak_of(program: str, tasks: Iterable[str]) -> None:
    """From now on `as_spoken` names `program` where a sentence says `inv` before one of these tasks."""
    global _spoken  # noqa: PLW0603  one process is one program
    names = "|".join(re.escape(name) for name in sorted(tasks, key=len, reverse=True))
    _spoken = re.compile(rf"\binv (?=(?:--help )?(?:{names}|TASK)\b)"), f"{program} "


def as_spoken(text: str) -> str:
    """Return one of Roost's own sentences with the command as this program is typed: `inv serve` or `roost serve`."""
    return text if _spoken is None else _spoken[0].sub(_spoken[1], text)


def sentence(text: str) -> str:
    """Return one of Roost's own sentences, ready to print: the command as it is typed, foreign text harmless."""
    return printable(as_spoken(text))


def write_to_any_terminal() -> None:
    """Make stdout and stderr accept every character; characters outside of their encoding are written in ASCII."""
    codecs.register_error("roost", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="roost")


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(char) or ascii(char)[1:-1] for char in lacking), error.end


def printable(text: str) -> str:
    """Return `text` with control characters and terminal escapes made visible instead of executed; tabs stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in text)


def moment(unix_seconds: float) -> str:
    """Return a Unix time as the laptop's local date and time; `?` if no calendar has it."""
    try:
        return datetime.datetime.fromtimestamp(unix_seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "?"
