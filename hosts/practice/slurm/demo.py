"""`make demo-slurm`: an extraction on three nodes of a real Slurm. One node dies half way. Laptop's side."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from hosts.practice.cluster_demo import NODES, ClusterDemo
from hosts.practice.demo import run_demo
from hosts.practice.paths import PracticePaths
from hosts.practice.slurm.lab import Lab, obstacle


class SlurmDemo(ClusterDemo):
    """One demo on a practice Slurm."""

    def __init__(self, paths: PracticePaths, console: Console) -> None:
        super().__init__(paths, console, "slurm", lambda root: Lab(root, NODES), obstacle())

    def settings(self) -> dict[str, object]:
        return {"partition": "main", "time": "04:00:00"}


if __name__ == "__main__":
    sys.exit(run_demo(SlurmDemo, *map(Path, sys.argv[1:2])))
