"""Every path under `.roost/`, the folder beside the inventory in which the laptop keeps its own state. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remote.shared.paths import safe_name


@dataclass(frozen=True)
class Kept:
    """`.roost/` of one inventory."""

    folder: Path
    """The inventory's folder, absolute."""

    @classmethod
    def beside(cls, inventory: Path) -> Kept:
        """What is kept for this inventory file, which need not be readable."""
        return cls(inventory.absolute().parent)

    @property
    def root(self) -> Path:
        return self.folder / ".roost"

    @property
    def runs(self) -> Path:
        """One folder for each planned run."""
        return self.root / "runs"

    def plan(self, run: str) -> Path:
        """A run's plan; raises UsageError for a name that is no file name."""
        return self.runs / safe_name(run, "run name") / "plan.json"

    def assignment(self, run: str, epoch: int, host: str) -> Path:
        """The folder of one host's share of a run, as it was last written in this epoch."""
        return self.plan(run).parent / "assignments" / str(epoch) / host

    @property
    def bench(self) -> Path:
        """Measurements, a folder for each host."""
        return self.root / "bench"

    @property
    def tune(self) -> Path:
        """Searches over NCCL settings, a file for each host, mode and goal."""
        return self.root / "tune"

    @property
    def spools(self) -> Path:
        """Records on their way into a bucket, a folder for each bucket."""
        return self.root / "spool"
