"""How a sentence counts things. Both sides."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """`1 record`, `1,200 records`; `many` is what more than one of `one` are called, by default with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
