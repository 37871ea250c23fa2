"""Formats bytes and seconds for people. Laptop's side, pure."""

from __future__ import annotations

import math


def size(count: float) -> str:
    """Return bytes in binary units: `4.6 TiB`."""
    if not math.isfinite(count):
        return "?"
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    for unit in units[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {units[-1]}"


def duration(seconds: float) -> str:
    """Return seconds in their two largest units: `2 d 3 h`, `4 min 05 s`."""
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
