"""`python -m tests.slurm [--only FAULT …] [--seed N] [--results FILE]`: each fault at a random moment of a run."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from hosts.practice import namespaces
from hosts.practice.slurm import lab
from hosts.practice.slurm.lab import Lab, is_of
from tests.clusters.suite import Fault, Suite, nothing
from tests.clusters.trial import Site

SPOT: dict[str, object] = {"partition": "spot"}


def kill_replica(site: Site[Lab], draw: random.Random) -> None:
    draw.choice(list(site.lab.replicas().values())).kill()


def kill_server(site: Site[Lab], draw: random.Random) -> None:
    """Its replica waits for a server, or ends with that cause; the others do the rest."""
    node = draw.choice(list(site.lab.replicas()))
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline()[1:2] and process.cmdline()[1].endswith("standin.py") and is_of(process, node):
                process.kill()


def requeue(site: Site[Lab], draw: random.Random) -> None:
    job = draw.choice(list(site.lab.running()))
    namespaces.run("scontrol", "requeue", job)


def preempt(site: Site[Lab], draw: random.Random) -> None:
    """Somebody with more right takes a node for a few seconds."""
    node = draw.choice(list(site.lab.running().values()))
    namespaces.run("sbatch", "-p", "main", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3")


def lose_node(site: Site[Lab], draw: random.Random) -> None:
    node = draw.choice(list(site.lab.running().values()))
    site.lab.lose_node(node)
    site.lab.start_node(node)


def split_brain(site: Site[Lab], draw: random.Random) -> None:
    """Slurm takes the node for dead and starts its task again, while the first attempt works on."""
    node = draw.choice(list(site.lab.running().values()))
    site.lab.lose_node(node, daemons_alone=True)


def restart_controller(site: Site[Lab], _: random.Random) -> None:
    site.lab.restart_controller()


def drain(site: Site[Lab], draw: random.Random) -> None:
    """What Slurm sends before the time limit."""
    job = draw.choice(list(site.lab.running()))
    namespaces.run("scancel", "--batch", "--signal=USR1", job)


def of(nodes: int) -> Callable[[Path], Lab]:
    return lambda root: Lab(root, nodes)


FAULTS = {
    "undisturbed": Fault(nothing, of(3)),
    "replica-killed": Fault(kill_replica, of(3)),
    "server-killed": Fault(kill_server, of(3)),
    "requeued": Fault(requeue, of(3)),
    "preempted": Fault(preempt, of(3), SPOT),
    "node-lost": Fault(lose_node, of(3)),
    "split-brain": Fault(split_brain, of(3)),
    "controller-restarted": Fault(restart_controller, of(3)),
    "told-to-drain": Fault(drain, of(3)),
    "cluster-of-one": Fault(kill_replica, of(1)),
}

SUITE = Suite("tests.slurm", FAULTS, lab.obstacle)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(SUITE.main(sys.argv[1:]))
