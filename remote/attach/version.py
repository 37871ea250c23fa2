"""SGLang's version numbers, ordered. Standard library only."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?")

SUPPORTED = ((0, 5, 9, 0), (0, 5, 23, 99))
"""The first and the last SGLang version on which the patch was tried, inclusive."""
SUPPORTED_TEXT = "0.5.9 to 0.5.23"


def release(version: str) -> tuple[int, int, int, int]:
    """Return `0.5.10.post1` as (0, 5, 10, 1); an unreadable version is (0, 0, 0, 0), older than every other."""
    found = _NUMBERS.match(version)
    if found is None:
        return (0, 0, 0, 0)
    major, minor, patch, post = found.groups(default="0")
    return (int(major), int(minor), int(patch), int(post))


def supported(version: str) -> bool:
    """Return whether a version lies within that range."""
    first, last = SUPPORTED
    return first <= release(version) <= last
