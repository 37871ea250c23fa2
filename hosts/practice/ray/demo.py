"""`make demo-ray`: one extraction on three nodes of a real Ray, of which one dies half way. Laptop's side."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from hosts.practice.cluster_demo import NODES, ClusterDemo, show
from hosts.practice.paths import PracticePaths, practice_root
from hosts.practice.ray.lab import CPUS, Lab, obstacle


class RayDemo(ClusterDemo):
    """One demo on a practice Ray."""

    def __init__(self, paths: PracticePaths, console: Console) -> None:
        super().__init__(paths, "ray", lambda root: Lab(root, paths.root / ".ray", NODES), console)

    def settings(self) -> dict[str, object]:
        """SGLang runs on CPU here: a replica takes all CPUs of its node, and none of the pretended GPUs."""
        return {"gpus_per_node": 0, "resources": {"CPU": CPUS}}


def main(root: Path | None = None) -> int:
    """Run the demo; return 1 after one sentence if a step fails."""
    root = root or practice_root()
    return show(RayDemo, "hosts.practice.ray.demo", obstacle(root), root)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
