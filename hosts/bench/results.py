"""Kept measurements: one file for each result, under `.roost/bench/<host>/` beside the inventory."""

from __future__ import annotations

import datetime
from pathlib import Path

from pydantic import ValidationError

from hosts.errors import UsageError
from remote.shared.files import make_directory, write_whole
from remote.shared.messages.bench import BenchResult
from remote.shared.paths import safe_name


class BenchResults:
    """All results beside one inventory; a result's name is `HOST/LABEL`."""

    def __init__(self, folder: Path) -> None:
        self._root = folder

    def save(self, result: BenchResult) -> str:
        """Keep a result and return its name; if the label exists already, a number is added to it."""
        label = safe_name(result.label or f"{result.mode}-{_day_and_time(result.taken_at)}", "label")
        folder = make_directory(self._root / safe_name(result.host, "host"))
        name, number = label, 1
        while (folder / f"{name}.json").exists():
            number += 1
            name = f"{label}-{number}"
        write_whole(folder / f"{name}.json", result.model_dump_json(indent=1).encode())
        return f"{result.host}/{name}"

    def load(self, name: str) -> BenchResult:
        """Return the result called `HOST/LABEL`, or `LABEL` if only one host has it; raises UsageError otherwise."""
        found = self._find(name)
        if len(found) > 1:
            names = ", ".join(self._name(path) for path in found)
            raise UsageError(f"Several results are called {name!r}: {names}.", remedy="Name one as HOST/LABEL.")
        return _read(found[0])

    def load_all(self, pattern: str) -> list[BenchResult]:
        """Return every result that a pattern such as `gpu1/before-*` matches; without `*`, the result of that name."""
        return [_read(path) for path in self._find(pattern)] if "*" in pattern else [self.load(pattern)]

    def names(self) -> list[str]:
        """Return the names of all results, oldest first within a host."""
        paths = sorted(self._root.glob("*/*.json"), key=lambda path: (path.parent.name, path.stat().st_mtime))
        return [self._name(path) for path in paths]

    def _find(self, name: str) -> list[Path]:
        found = sorted(self._root.glob(f"{name}.json" if "/" in name else f"*/{name}.json"))
        if not found:
            known = ", ".join(self.names()) or "none yet"
            raise UsageError(f"There is no result {name!r}.", remedy=f"Kept results: {known}.")
        return found

    def _name(self, path: Path) -> str:
        return f"{path.parent.name}/{path.stem}"


def _read(path: Path) -> BenchResult:
    try:
        return BenchResult.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UsageError(f"{path} is not a result that this version of Roost can read.") from error


def _day_and_time(unix_seconds: float) -> str:
    """Return `20260131-120000`, or `undated` for a time that no calendar has."""
    try:
        return f"{datetime.datetime.fromtimestamp(unix_seconds, datetime.UTC):%Y%m%d-%H%M%S}"
    except (OverflowError, ValueError, OSError):
        return "undated"
