"""The record of a search, saved after every step so that the search can be resumed."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from hosts.errors import UsageError
from hosts.inventory.kept import Kept
from hosts.inventory.model import FlagValue
from hosts.tune.grid import Setting
from hosts.tune.score import Goal
from remote.shared.files import make_directory, write_whole
from remote.shared.messages.bench import BenchResult
from remote.shared.messages.tune import ScreenResult
from remote.shared.paths import safe_name


class Trial(BaseModel):
    """One start of a real server under one setting."""

    status: str
    """`ok`, or why it was skipped."""
    result: BenchResult | None = None


class Screened(BaseModel):
    """One setting in one round of the screening."""

    result: ScreenResult
    baseline: int
    """Index in `TuneRecord.baselines`: the current setting as it was measured shortly before."""


class Entry(BaseModel):
    """Everything known about one setting."""

    setting: Setting
    screened: list[Screened] = Field(default_factory=list)
    """One result for each round; empty for the current setting, whose results are the baselines."""
    trials: list[Trial] = Field(default_factory=list)


class Found(BaseModel):
    """The server as it ran before the search started its first one."""

    mode: str | None
    """None if the server did not run."""


class Basis(BaseModel):
    """The circumstances of a record's numbers; a search under other circumstances starts over."""

    grid: dict[str, list[FlagValue]]
    now: Setting
    """The current setting, with which all others are compared."""
    model: str
    tp: int
    gpus: list[int]


class TuneRecord(BaseModel):
    """`.roost/tune/<host>-<mode>-<goal>.json` beside the inventory."""

    host: str
    mode: str
    goal: Goal
    basis: Basis
    found: Found | None = None
    """Set while the host's server is not as it was found; a resumed search restores it."""
    baselines: list[ScreenResult] = Field(default_factory=list)
    """The current setting, measured again and again between the others, so that a drift of the machine shows."""
    entries: dict[str, Entry] = Field(default_factory=dict)
    """The entries by the setting's key."""

    def entry(self, setting: Setting) -> Entry:
        """Return the setting's entry, adding it if it is missing."""
        return self.entries.setdefault(setting.key, Entry(setting=setting))

    def save(self, root: Path) -> None:
        """Write the record atomically."""
        write_whole(path_of(root, self.host, self.mode, self.goal), self.model_dump_json(indent=1).encode())


def path_of(root: Path, host: str, mode: str, goal: Goal) -> Path:
    """Return the record's path."""
    folder = make_directory(Kept(root).tune)
    return folder / f"{safe_name(host, 'host')}-{safe_name(mode, 'mode')}-{goal}.json"


def load(root: Path, host: str, mode: str, goal: Goal, basis: Basis, *, fresh: bool) -> TuneRecord:
    """Return the record, or an empty one if there is none, if `fresh` is set, or if the basis has changed.

    `found` is kept in every case, so that the server can be restored.
    """
    path = path_of(root, host, mode, goal)
    empty = TuneRecord(host=host, mode=mode, goal=goal, basis=basis)
    if not path.exists():
        return empty
    try:
        record = TuneRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UsageError(f"{path} cannot be read.", remedy="Remove it and start over.") from error
    if fresh or record.basis != basis:
        return empty.model_copy(update={"found": record.found})
    return record
