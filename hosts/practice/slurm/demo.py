"""`make demo-slurm`: one extraction on three nodes of a real Slurm, of which one dies half way. Laptop's side."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from hosts.practice.cluster_demo import NODES, ClusterDemo, show
from hosts.practice.paths import PracticePaths, practice_root
from hosts.practice.slurm.lab import Lab, obstacle


class SlurmDemo(ClusterDemo):
    """One demo on a practice Slurm."""

    def __init__(self, paths: PracticePaths, console: Console) -> None:
        super().__init__(paths, "slurm", lambda root: Lab(root, NODES), console)

    def settings(self) -> dict[str, object]:
        return {"partition": "main", "time": "04:00:00"}


def main(root: Path | None = None) -> int:
    """Run the demo; return 1 after one sentence if a step fails."""
    return show(SlurmDemo, "hosts.practice.slurm.demo", obstacle(), root or practice_root())


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
