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
from remote.engines.ray.folder import Folder
from remote.engines.ray.server import Server
from tests.clusters.suite import Fault, Suite, nothing
from tests.clusters.trial import PATIENCE_SECONDS, Site
from tests.faults.box import CLONE


def a_node(site: Site[Lab], draw: random.Random) -> str:
    """Return a node that has a replica, after waiting for a replica."""
    until(site.lab.replicas, PATIENCE_SECONDS)
    return draw.choice(sorted(site.lab.replicas()))


def standins(site: Site[Lab], node: str) -> list[psutil.Process]:
    """Return the servers of a node."""
    found = []
    for process in site.lab.processes(node):
        with suppress(psutil.Error):
            if process.cmdline()[1:2] and process.cmdline()[1].endswith("standin.py"):
                found.append(process)
    return found


def kill_replica(site: Site[Lab], draw: random.Random) -> None:
    site.lab.replicas()[a_node(site, draw)].kill()


def kill_actor(site: Site[Lab], draw: random.Random) -> None:
    """Kill an actor. Its replica and servers end with it, and Ray starts the actor again."""
    replica = site.lab.replicas()[a_node(site, draw)]
    parent = replica.parent()
    assert parent is not None
    parent.kill()


def leave_a_server(site: Site[Lab], draw: random.Random) -> None:
    """Kill actor, replica and guard at once, so that the server lives on. The next attempt names and ends it."""
    node = a_node(site, draw)
    replica = site.lab.replicas()[node]
    servers = standins(site, node)
    guards = [one for one in replica.children() if "remote.replica.guard" in one.cmdline()]
    parent = replica.parent()
    assert parent is not None
    assert guards
    assert servers
    for process in (*guards, parent, replica):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(servers, PATIENCE_SECONDS)
    assert not any(server.is_running() for server in servers)
    (name,) = [slot.name for slot in Folder(site.run / "jobs").slots() if slot.node == node]
    log = site.run / "jobs" / f"{name}.log"
    until(lambda: "ended what an earlier attempt had left on this node" in log.read_text(), PATIENCE_SECONDS)


def kill_server(site: Site[Lab], draw: random.Random) -> None:
    for process in standins(site, a_node(site, draw)):
        process.kill()


def kill_raylet(site: Site[Lab], draw: random.Random) -> None:
    """Kill a node's daemon, so that Ray loses the node, and start it again."""
    node = a_node(site, draw)
    site.lab.kill_raylet(node)
    site.lab.start_node(node)


def lose_node(site: Site[Lab], draw: random.Random) -> None:
    """Lose a node for good. The other nodes extract the remaining records."""
    site.lab.lose_node(a_node(site, draw))


def kill_controller(site: Site[Lab], _: random.Random) -> None:
    (process,) = site.lab.controllers()
    process.kill()
    until(lambda: [one for one in site.lab.controllers() if one.pid != process.pid], PATIENCE_SECONDS)


def restart_head(site: Site[Lab], _: random.Random) -> None:
    """Restart the head, which forgets the job, and submit the open records with the same command."""
    site.lab.restart_head()
    site.submit()


def ask_without_token(_: Site[Lab], __: random.Random) -> None:
    """Check that the cluster refuses requests without the token; the login host has the token."""
    assert not Server(lab.ADDRESS).is_open()


def join(site: Site[Lab], draw: random.Random) -> None:
    for node in site.lab.absent:
        site.lab.start_node(node)


def stop(site: Site[Lab], _: random.Random) -> None:
    """Type `--stop`, wait until every replica has ended, and submit again with the same command."""
    ended = site.inv("extract", "--cluster", "lab", "--run", "trial", "--stop")
    assert ended.returncode == 0, ended.stderr
    until(site.lab.is_idle, PATIENCE_SECONDS)
    assert not site.lab.replicas()
    site.submit()


def of(nodes: int, absent: str = "", slow: str = "", token: str = "") -> Callable[[Path], Lab]:
    slower = {slow: 10} if slow else {}
    return lambda root: Lab(root, CLONE / ".ray", nodes, frozenset([absent] if absent else []), slower, token)


FAULTS = {
    "undisturbed": Fault(nothing, of(3)),
    "token-asked-for": Fault(ask_without_token, of(2, token="0123456789abcdef0123456789abcdef0123456789abcdef")),
    "actor-killed": Fault(kill_actor, of(3)),
    "replica-killed": Fault(kill_replica, of(3)),
    "server-killed": Fault(kill_server, of(3)),
    "server-left": Fault(leave_a_server, of(2)),
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
