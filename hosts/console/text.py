"""Foreign text made harmless, and numbers as people read them."""

from __future__ import annotations

import codecs
import datetime
import io
import math
import sys

_ASCII = {"✓": "ok", "✗": "FAILED", "→": "->", "│": "|", "…": "...", "█": "#", "▏": "|", "\u00d7": "x", "\u2013": "-"}
"""Roost's own marks for terminals that know ASCII alone."""


def write_to_any_terminal() -> None:
    """Make stdout and stderr take every character: one that their encoding lacks is written in ASCII."""
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


def size(count: float) -> str:
    """Bytes in binary units: `4.6 TiB`."""
    if not math.isfinite(count):
        return "?"
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    for unit in units[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {units[-1]}"


def duration(seconds: float) -> str:
    """Seconds as the two largest units that matter: `2 d 3 h`, `4 min 05 s`."""
    if not math.isfinite(seconds):
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def moment(unix_seconds: float) -> str:
    """A Unix time as the laptop's local clock shows it; `?` where a host names one that no calendar has."""
    try:
        return datetime.datetime.fromtimestamp(unix_seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "?"
