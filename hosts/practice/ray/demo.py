"""`make demo-ray`: an extraction on three nodes of a real Ray. One node dies half way. Laptop's side."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from hosts.practice.cluster_demo import NODES, ClusterDemo
from hosts.practice.demo import run_demo
from hosts.practice.paths import PracticePaths
from hosts.practice.ray.lab import CPUS, Lab, obstacle


class RayDemo(ClusterDemo):
    """One demo on a practice Ray."""

    def __init__(self, paths: PracticePaths, console: Console) -> None:
        super().__init__(
            paths, console, "ray", lambda root: Lab(root, paths.root / ".ray", NODES), obstacle(paths.root)
        )

    def settings(self) -> dict[str, object]:
        """Return keys with which a replica takes all CPUs of its node and no pretended GPU, as SGLang runs on CPU."""
        return {"gpus_per_node": 0, "resources": {"CPU": CPUS}}


if __name__ == "__main__":
    sys.exit(run_demo(RayDemo, *map(Path, sys.argv[1:2])))
