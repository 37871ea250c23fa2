"""`python -m tests.slurm [--only FAULT …] [--seed N] [--results FILE]`: each fault at a random moment of a run."""

from __future__ import annotations

import random
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from hosts.practice import namespaces
from hosts.practice.nodes import until
from hosts.practice.slurm import lab
from hosts.practice.slurm.lab import Lab, is_of
from tests.clusters.suite import Fault, Suite, nothing
from tests.clusters.trial import Site

SPOT: dict[str, object] = {"partition": "spot"}
LATE = "n2"
FULL_SECONDS = 12.0
"""Longer than a lease, and than the nodes need for the chunks that they hold."""
MEMORY = next(
    (path for path in map(Path, ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")) if (path / "cgroup.procs").exists()),
    Path("/sys/fs/cgroup"),
)


def kill_replica(site: Site[Lab], draw: random.Random) -> None:
    draw.choice(list(site.lab.replicas().values())).kill()


def kill_server(site: Site[Lab], draw: random.Random) -> None:
    """Kill a node's server. Its replica waits for a server, or ends with that cause; the others do the rest."""
    node = draw.choice(list(site.lab.replicas()))
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline()[1:2] and process.cmdline()[1].endswith("standin.py") and is_of(process, node):
                process.kill()


def requeue(site: Site[Lab], draw: random.Random) -> None:
    job = draw.choice(list(site.lab.running()))
    namespaces.run("scontrol", "requeue", job)


def preempt(site: Site[Lab], draw: random.Random) -> None:
    """Let a job of higher priority take a node for a few seconds."""
    node = draw.choice(list(site.lab.running().values()))
    namespaces.run("sbatch", "-p", "main", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3")


def lose_node(site: Site[Lab], draw: random.Random) -> None:
    node = draw.choice(list(site.lab.running().values()))
    site.lab.lose_node(node)
    site.lab.start_node(node)


def split_brain(site: Site[Lab], draw: random.Random) -> None:
    """Let Slurm believe that a node is dead: Slurm starts its task again while the first attempt works on."""
    node = draw.choice(list(site.lab.running().values()))
    site.lab.lose_node(node, daemons_alone=True)


def restart_controller(site: Site[Lab], _: random.Random) -> None:
    site.lab.restart_controller()


def drain(site: Site[Lab], draw: random.Random) -> None:
    """Send the signal that Slurm sends before the time limit."""
    job = draw.choice(list(site.lab.running()))
    namespaces.run("scancel", "--batch", "--signal=USR1", job)


def out_of_memory(site: Site[Lab], draw: random.Random) -> None:
    """Let the kernel kill a replica that may not have one more page. The task's script names the cause."""
    victim = draw.choice(list(site.lab.replicas().values()))
    group = MEMORY / f"roost-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        for limit in ("memory.limit_in_bytes", "memory.max"):  # version 1 and 2
            if (group / limit).exists():
                (group / limit).write_text("0")
        (group / "cgroup.procs").write_text(str(victim.pid))
        until(lambda: any("137: killed" in log.read_text() for log in site.run.glob("jobs/*.log")))
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def fill_disk(site: Site[Lab], _: random.Random) -> None:
    """Fill the shared folder for some seconds, in which nothing is claimed or published and no log is written."""
    filler = site.shared / "filler"
    with filler.open("wb", buffering=0) as out, suppress(OSError):
        while True:
            out.write(bytes(1 << 16))
    before = site.published()
    time.sleep(FULL_SECONDS)
    assert site.published() == before
    filler.unlink()


def start_late(site: Site[Lab], _: random.Random) -> None:
    """Resume the node that was drained from the beginning, so that it takes a part of the open records."""
    namespaces.run("scontrol", "update", f"nodename={LATE}", "state=resume")


def limit_time(site: Site[Lab], draw: random.Random) -> None:
    """Shorten a task's time limit to a minute. Slurm sends its signal before the limit, and the task is requeued."""
    job = draw.choice(list(site.lab.running()))
    namespaces.run("scontrol", "update", f"jobid={job}", "timelimit=1")


def exceed_time(site: Site[Lab], draw: random.Random) -> None:
    """Suspend a replica, so that it does not drain. Slurm ends its task at the limit and never starts it again."""
    node = draw.choice(list(site.lab.replicas()))
    (job,) = [job for job, its in site.lab.running().items() if its == node]
    site.lab.replicas()[node].suspend()
    namespaces.run("scontrol", "update", f"jobid={job}", "timelimit=1")


class SmallDisk(Lab):
    """A cluster whose shared folder is a small disk."""

    def start(self) -> None:
        shared = self.root.parent / "shared folder"
        shared.mkdir(parents=True)
        namespaces.run("mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(shared))
        super().start()


class LateNode(Lab):
    """A cluster with a node that takes no task until it is resumed."""

    def start(self) -> None:
        super().start()
        namespaces.run("scontrol", "update", f"nodename={LATE}", "state=drain", "reason=late")


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
    "disk-full": Fault(fill_disk, partial(SmallDisk, nodes=3)),
    "out-of-memory": Fault(out_of_memory, of(3)),
    "late": Fault(start_late, partial(LateNode, nodes=3)),
    "time-limit": Fault(limit_time, of(3)),
    "time-limit-while-hanging": Fault(exceed_time, of(3)),
    "cluster-of-one": Fault(kill_replica, of(1)),
}

SUITE = Suite("tests.slurm", FAULTS, lab.obstacle)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(SUITE.main(sys.argv[1:]))
