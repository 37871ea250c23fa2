"""File names in a dump directory: a record's dump, its parts by pipeline stage, its failure. Standard library only."""

from __future__ import annotations

import re

WHOLE = ".safetensors"
FAILED = ".error.json"
CANARY = ".canary"
"""Stands between id and stage in the name of the file that the canary's own hook writes."""
_DIGITS = 4
"""Stage numbers have at most this many digits."""
_STAGE = re.compile(r"\.stage\d+of\d+$")


def stage_suffix(stage: int, count: int) -> str:
    """Return the text between a dump's request id and its extension: "" if one stage holds all slots."""
    return "" if count == 1 else f".stage{stage}of{count}"


def stages(rid: str, names: set[str]) -> list[str]:
    """Return the names of a record's parts, one for each pipeline stage; none until all parts are there."""
    first = next((name for name in names if name.startswith(f"{rid}.stage") and name.endswith(WHOLE)), None)
    if first is None:
        return []
    count = first[len(rid) : -len(WHOLE)].rpartition("of")[2]
    if not count.isdecimal() or len(count) > _DIGITS:
        return []
    parts = [f"{rid}{stage_suffix(stage, int(count))}{WHOLE}" for stage in range(int(count))]
    return parts if names.issuperset(parts) else []


def request_of(name: str) -> str:
    """Return the request id in a dump's file name, or "" for any other file."""
    for ending in (WHOLE, FAILED):
        if name.endswith(ending):
            stem = _STAGE.sub("", name[: -len(ending)])
            return stem.removesuffix(CANARY)
    return ""
