"""`python -m tests.ray [--only FAULT …] [--seed N] [--rounds N] [--results FILE]`: each fault at a random moment."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from hosts.practice.nodes import until
from hosts.practice.ray import lab
from hosts.practice.ray.lab import Lab
from tests.clusters.suite import Fault, Suite, nothing
from tests.clusters.trial import PATIENCE_SECONDS, Site
from tests.faults.box import CLONE


def a_node(site: Site[Lab], draw: random.Random) -> str:
    """A node with a replica."""
    until(site.lab.replicas, PATIENCE_SECONDS)
    return draw.choice(sorted(site.lab.replicas()))


def kill_replica(site: Site[Lab], draw: random.Random) -> None:
    site.lab.replicas()[a_node(site, draw)].kill()


def kill_actor(site: Site[Lab], draw: random.Random) -> None:
    """Ray starts the actor again; replica and servers end with the old one."""
    replica = site.lab.replicas()[a_node(site, draw)]
    parent = replica.parent()
    assert parent is not None
    parent.kill()


def kill_server(site: Site[Lab], draw: random.Random) -> None:
    for process in site.lab.processes(a_node(site, draw)):
        with suppress(psutil.Error):
            if process.cmdline()[1:2] and process.cmdline()[1].endswith("standin.py"):
                process.kill()


def kill_raylet(site: Site[Lab], draw: random.Random) -> None:
    """The node is lost to Ray, and comes back."""
    node = a_node(site, draw)
    site.lab.kill_raylet(node)
    site.lab.start_node(node)


def lose_node(site: Site[Lab], draw: random.Random) -> None:
    """For good: the others do the rest."""
    site.lab.lose_node(a_node(site, draw))


def kill_controller(site: Site[Lab], _: random.Random) -> None:
    (process,) = site.lab.controllers()
    process.kill()
    until(lambda: [one for one in site.lab.controllers() if one.pid != process.pid], PATIENCE_SECONDS)


def restart_head(site: Site[Lab], _: random.Random) -> None:
    """Ray forgets the job; the same command submits the rest."""
    site.lab.restart_head()
    site.submit()


def join(site: Site[Lab], draw: random.Random) -> None:
    for node in site.lab.absent:
        site.lab.start_node(node)


def stop(site: Site[Lab], _: random.Random) -> None:
    """`--stop`, the end of every replica, and the same command again."""
    ended = site.inv("extract", "--cluster", "lab", "--run", "trial", "--stop")
    assert ended.returncode == 0, ended.stderr
    until(site.lab.is_idle, PATIENCE_SECONDS)
    assert not site.lab.replicas()
    site.submit()


def of(nodes: int, absent: str = "", slow: str = "") -> Callable[[Path], Lab]:
    slower = {slow: 10} if slow else {}
    return lambda root: Lab(root, CLONE / ".ray", nodes, frozenset([absent] if absent else []), slower)


FAULTS = {
    "undisturbed": Fault(nothing, of(3)),
    "actor-killed": Fault(kill_actor, of(3)),
    "replica-killed": Fault(kill_replica, of(3)),
    "server-killed": Fault(kill_server, of(3)),
    "raylet-killed": Fault(kill_raylet, of(3)),
    "node-lost": Fault(lose_node, of(3)),
    "controller-killed": Fault(kill_controller, of(3)),
    "head-restarted": Fault(restart_head, of(2)),
    "node-joins-late": Fault(join, of(3, absent="n2")),
    "slow-node": Fault(nothing, of(3, slow="n1")),
    "stopped": Fault(stop, of(2)),
    "cluster-of-one": Fault(kill_actor, of(1)),
}
SUITE = Suite("tests.ray", FAULTS, lambda: lab.obstacle(CLONE))

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(SUITE.main(sys.argv[1:]))
