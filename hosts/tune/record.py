"""What a tuning has found so far, kept after every step so that it can be resumed."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from hosts.errors import UsageError
from hosts.tune.grid import Setting
from hosts.tune.score import Goal
from remote.files import make_directory, write_whole
from remote.messages.bench import BenchResult
from remote.messages.tune import ScreenResult
from remote.paths import safe_name


class Trial(BaseModel):
    """One real server start under one setting."""

    status: str
    """`ok`, or why it was skipped."""
    result: BenchResult | None = None


class Entry(BaseModel):
    """All that is known of one setting."""

    setting: Setting
    screened: list[ScreenResult] = Field(default_factory=list)
    """One result a round."""
    trials: list[Trial] = Field(default_factory=list)


class TuneRecord(BaseModel):
    """`.roost/tune/<host>-<mode>-<goal>.json` beside the inventory."""

    host: str
    mode: str
    goal: Goal
    grid: dict[str, list[object]]
    entries: dict[str, Entry] = Field(default_factory=dict)
    """By the setting's key."""

    def entry(self, setting: Setting) -> Entry:
        """The setting's entry, made where there is none."""
        return self.entries.setdefault(setting.key, Entry(setting=setting))

    def save(self, root: Path) -> None:
        """Write it whole."""
        write_whole(path_of(root, self.host, self.mode, self.goal), self.model_dump_json(indent=1).encode())


def path_of(root: Path, host: str, mode: str, goal: Goal) -> Path:
    """Where the record is kept."""
    folder = make_directory(root / ".roost" / "tune")
    return folder / f"{safe_name(host, 'host')}-{safe_name(mode, 'mode')}-{goal}.json"


def load(root: Path, host: str, mode: str, goal: Goal, grid: dict[str, list[object]], *, fresh: bool) -> TuneRecord:
    """The unfinished record, or a new one where there is none, `fresh` is asked for, or the grid has changed."""
    path = path_of(root, host, mode, goal)
    empty = TuneRecord(host=host, mode=mode, goal=goal, grid=grid)
    if fresh or not path.exists():
        return empty
    try:
        record = TuneRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UsageError(f"{path} cannot be read.", remedy="Start over with --fresh.") from error
    return record if record.grid == grid else empty
