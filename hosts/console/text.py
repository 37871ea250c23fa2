"""Makes text from hosts harmless to print, and shows their times by the laptop's clock."""

from __future__ import annotations

import codecs
import datetime
import io
import sys

_ASCII = {"✓": "ok", "✗": "FAILED", "→": "->", "│": "|", "…": "...", "█": "#", "▏": "|", "\u00d7": "x", "\u2013": "-"}
"""Roost's own marks for terminals that know ASCII alone."""


def write_to_any_terminal() -> None:
    """Make stdout and stderr accept every character; one that their encoding lacks is written in ASCII."""
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
    """`text` with control characters and terminal escapes shown instead of executed; tabs stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in text)


def moment(unix_seconds: float) -> str:
    """Return a Unix time as the laptop's local date and time; `?` for a time that no calendar has."""
    try:
        return datetime.datetime.fromtimestamp(unix_seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "?"
