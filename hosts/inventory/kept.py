"""Every path under `.roost/`, the folder beside the inventory in which the laptop keeps its own state. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remote.shared.paths import safe_name


@dataclass(frozen=True)
class Kept:
    """The paths under `.roost/` of one inventory."""

    folder: Path
    """The absolute path of the inventory's folder."""

    @classmethod
    def beside(cls, inventory: Path) -> Kept:
        """Return the paths for this inventory file, which need not be readable."""
        return cls(inventory.absolute().parent)

    @property
    def root(self) -> Path:
        return self.folder / ".roost"

    @property
    def runs(self) -> Path:
        """The folder with a folder for each planned run."""
        return self.root / "runs"

    def plan(self, run: str) -> Path:
        """Return the path of a run's plan; raises UsageError for a name that cannot be a file name."""
        return self.runs / safe_name(run, "run name") / "plan.json"

    def prompts(self, run: str) -> Path:
        """The prompts of a run of answers, as a dataset."""
        return self.plan(run).parent / "prompts"

    def assignment(self, run: str, epoch: int, host: str) -> Path:
        """Return the folder of one host's assignment in this epoch."""
        return self.plan(run).parent / "assignments" / str(epoch) / host

    @property
    def trail(self) -> Path:
        """The laptop's trail of changing commands (`remote.shared.trail`)."""
        return self.root / "trail.jsonl"

    @property
    def bench(self) -> Path:
        """The folder of measurements, with a folder for each host."""
        return self.root / "bench"

    @property
    def tune(self) -> Path:
        """The folder of searches over NCCL settings, with a file for each host, mode and goal."""
        return self.root / "tune"

    @property
    def spools(self) -> Path:
        """The folder of records on their way into buckets, with a folder for each bucket."""
        return self.root / "spool"
