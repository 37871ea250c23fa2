"""`python -m tests.ray.refusals`: settings that cannot work on a real Ray are refused with a sentence, without waiting.

Prints one line for each case. Ends with 1 if a sentence is missing.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hosts.practice import namespaces
from hosts.practice.nodes import until
from hosts.practice.ray import lab
from hosts.practice.ray.lab import Lab
from tests.clusters.trial import PATIENCE_SECONDS, Site
from tests.faults.box import CLONE

NODE = "n0"


@dataclass(frozen=True)
class Case:
    """Settings of the cluster, and a part of the sentence that refuses them."""

    name: str
    sentence: str
    settings: dict[str, object] = field(default_factory=dict)
    before: Callable[[Site[Lab]], None] = lambda _: None


def start_node(site: Site[Lab]) -> None:
    site.lab.start_node(NODE)


def other_version(root: Path) -> str:
    """Return a Python whose Ray claims to have another version than the cluster's."""
    script = root / "other-python"
    main = "import runpy, sys, ray; ray.__version__ = '2.11.0'; sys.argv = sys.argv[1:]; "
    main += "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    script.write_text(f'#!/bin/sh\nshift\nexec {CLONE / ".ray/bin/python"} -c "{main}" "$@"\n')
    script.chmod(0o700)
    return str(script)


def cases(root: Path) -> list[Case]:
    return [
        Case("no cluster", "No Ray job server answers at http://127.0.0.1:1", {"address": "http://127.0.0.1:1"}),
        Case("no GPUs", "No node of the Ray cluster at http://127.0.0.1:8265 has a GPU"),
        Case("too few nodes", "1 node(s) of the Ray cluster", {"nodes": [2, 3]}, start_node),
        Case("never fits", "the most that its nodes have is 8 GPU, 2 CPU", {"gpus_per_node": 16}),
        Case("no Ray in ray_python", "on the head node has no Ray", {"ray_python": sys.executable}),
        Case("no ray_python", "The head node cannot run /no/python", {"ray_python": "/no/python"}),
        Case("another Ray", "the cluster runs another version", {"ray_python": other_version(root)}),
    ]


def refuse_each(site: Site[Lab], root: Path) -> int:
    """Type `inv extract` with each case's settings; return the number of cases that were not refused as expected."""
    wrong = 0
    for case in cases(root):
        case.before(site)
        site.write_inventory(**case.settings)
        ended = site.inv("extract", "--cluster", "lab", "--run", "trial")
        said = " ".join((ended.stdout + ended.stderr).split())
        as_expected = ended.returncode == 2 and case.sentence in said and "Traceback" not in said
        wrong += not as_expected
        print(f"{case.name}: {'refused' if as_expected else f'NOT as expected ({ended.returncode})'}: {said[-400:]}")
    return wrong


def refuse_a_node_without_the_folder(site: Site[Lab]) -> int:
    """Check that a node with another folder at the same path ends its replica and the job; return 1 if it does not."""
    site.write_inventory(nodes=1)
    site.lab.cover(NODE, site.shared)
    site.submit()
    until(site.lab.is_idle, PATIENCE_SECONDS)
    (log,) = [path for path in site.lab.logs() if site.job in path.name]
    said = log.read_text()
    as_expected = f"no replica is left: r0: the node {NODE} does not see" in said
    print(f"a node without the shared folder: {'refused' if as_expected else 'NOT as expected'}: {said[-400:]}")
    return not as_expected


def main() -> int:
    """Run every case in this program's own namespaces."""
    if why := lab.obstacle(CLONE) or namespaces.enter("tests.ray.refusals", []):
        print(why, file=sys.stderr)
        return 3
    namespaces.run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="roost-cluster-"))
    try:
        site = Site(root, Lab(root / "lab", CLONE / ".ray", 1, frozenset([NODE])))
        site.lab.start()
        site.build()
        return int(refuse_each(site, root) + refuse_a_node_without_the_folder(site) > 0)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
