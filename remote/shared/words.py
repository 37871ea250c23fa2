"""Counts things in sentences. Both sides."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """Return `1 record` or `1,200 records`; `many` is the plural of `one`, by default with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
