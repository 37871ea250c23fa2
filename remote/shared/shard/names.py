"""File names in a dump directory: a record's dump, its parts by pipeline stage, its failure. Standard library only."""

from __future__ import annotations

import re

WHOLE = ".safetensors"
FAILED = ".error.json"
CANARY = ".canary"
"""Between id and stage in the name of what the canary's own hook saw."""
_DIGITS = 4
"""No server has more pipeline stages than these digits can say."""
_STAGE = re.compile(r"\.stage\d+of\d+$")


def stage_suffix(stage: int, count: int) -> str:
    """What stands between a dump's request id and its extension: "" if one stage holds all slots."""
    return "" if count == 1 else f".stage{stage}of{count}"


def stages(rid: str, names: set[str]) -> list[str]:
    """Names of a record's parts, one a pipeline stage, once all of them are there; else an empty list."""
    first = next((name for name in names if name.startswith(f"{rid}.stage") and name.endswith(WHOLE)), None)
    if first is None:
        return []
    count = first[len(rid) : -len(WHOLE)].rpartition("of")[2]
    if not count.isdecimal() or len(count) > _DIGITS:
        return []
    parts = [f"{rid}{stage_suffix(stage, int(count))}{WHOLE}" for stage in range(int(count))]
    return parts if names.issuperset(parts) else []


def request_of(name: str) -> str:
    """The request id in a dump's file name, or "" if it is another file."""
    for ending in (WHOLE, FAILED):
        if name.endswith(ending):
            stem = _STAGE.sub("", name[: -len(ending)])
            return stem.removesuffix(CANARY)
    return ""
