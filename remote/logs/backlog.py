"""Runs on the host for `remote.logs`: finds the file and byte at which the requested lines begin. Reads logs only."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from remote.logs.lines import CHUNK_BYTES, MAX_LINE_BYTES
from remote.logs.pattern import Pattern
from remote.shared.files import open_own

_TIME = re.compile(rb"\W{0,3}(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:?\d\d)?")
"""The time at the start of a line: SGLang's `[2026-01-31 12:00:00 TP0]`, Python logging's default, or ISO 8601."""

_Place = tuple[int, int]
"""The number of a file in the list, and a byte in that file."""


@dataclass(frozen=True)
class Start:
    """The first byte to send."""

    path: Path
    offset: int = 0


def backlog_start(files: Sequence[Path], lines: int | None, pattern: Pattern | None, since: float | None) -> Start:
    """Return the start of the last `lines` lines that match `pattern` and were logged at `since` (Unix time) or later.

    `files` are the files of one log, oldest first, at least one. None disables a condition.
    """
    first = (0, 0) if since is None else _first_since(files, since)
    if lines is None:
        place = first
    elif pattern is None or lines == 0:
        place = _last_lines(files, lines, first)
    else:
        place = _last_matches(files, lines, pattern, first)
    return Start(files[place[0]], place[1])


def logged_at(line: bytes) -> float | None:
    """Return the Unix time at a line's start; a time without a zone is this host's local time."""
    match = _TIME.match(line)
    if match is None:
        return None
    day, clock, zone = (part.decode() if part else "" for part in match.groups())
    try:
        return datetime.fromisoformat(f"{day}T{clock}{_iso_zone(zone)}").timestamp()
    except ValueError:
        return None


def _iso_zone(zone: str) -> str:
    """Rewrite `Z` and `+0100` as Python 3.10's fromisoformat reads them."""
    if zone in {"", "Z"}:
        return "+00:00" if zone else ""
    return zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"


def _first_since(files: Sequence[Path], since: float) -> _Place:
    """Return the first line with a time of at least `since`; the end of the log if there is none."""
    for number, path in enumerate(files):
        if path.stat().st_mtime < since:
            continue
        for offset, line in _lines(path, 0):
            at = logged_at(line)
            if at is not None and at >= since:
                return number, offset
    return _end(files)


def _last_lines(files: Sequence[Path], count: int, first: _Place) -> _Place:
    """Go back `count` lines, over earlier files too, but not beyond `first`."""
    if count == 0:
        return _end(files)
    wanted = count
    for number in range(len(files) - 1, first[0] - 1, -1):
        found, offset = _back(files[number], wanted, first[1] if number == first[0] else 0)
        if found == wanted:
            return number, offset
        wanted -= found
    return first


def _last_matches(files: Sequence[Path], count: int, pattern: Pattern, first: _Place) -> _Place:
    matches: deque[_Place] = deque(maxlen=count)
    for number in range(first[0], len(files)):
        for offset, line in _lines(files[number], first[1] if number == first[0] else 0):
            if pattern.search(line.decode(errors="replace")):
                matches.append((number, offset))
    return matches[0] if matches else _end(files)


def _end(files: Sequence[Path]) -> _Place:
    """Return the end of the last whole line; an unfinished line is sent once it is whole."""
    path = files[-1]
    size = path.stat().st_size
    with os.fdopen(open_own(path), "rb") as log:
        log.seek(max(0, size - 1))
        unfinished = log.read(1) not in {b"", b"\n"}
    return len(files) - 1, _back(path, 1, 0)[1] if unfinished else size


def _back(path: Path, count: int, floor: int) -> tuple[int, int]:
    """Count the lines (at most `count`) that begin in `path` at `floor` or later; also return the first offset."""
    with os.fdopen(open_own(path), "rb") as log:
        size = log.seek(0, os.SEEK_END)
        if size <= floor:
            return 0, floor
        end = size - 1  # if the last byte is a newline, no line begins after it
        found = 0
        while end > floor:
            begin = max(floor, end - CHUNK_BYTES)
            log.seek(begin)
            block = log.read(end - begin)
            newlines = block.count(b"\n")
            if found + newlines >= count:
                return count, begin + _nth_from_end(block, count - found) + 1
            found += newlines
            end = begin
    return found + 1, floor


def _nth_from_end(block: bytes, nth: int) -> int:
    place = len(block)
    for _ in range(nth):
        place = block.rfind(b"\n", 0, place)
    return place


def _lines(path: Path, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield every line of `path` with the offset of its first byte; very long lines are cut."""
    with os.fdopen(open_own(path), "rb") as log:
        log.seek(offset)
        inside = False
        while piece := log.readline(MAX_LINE_BYTES):
            if not inside:
                yield offset, piece.rstrip(b"\n")
            inside = not piece.endswith(b"\n")
            offset += len(piece)
