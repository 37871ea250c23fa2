"""`python -m tests.slurm [--only FAULT …] [--seed N] [--results FILE]`: each fault at a random moment of a run."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

import psutil

from hosts.practice import namespaces
from hosts.practice.slurm import lab
from hosts.practice.slurm.lab import Lab, is_of
from tests.slurm.trial import Site, Strike, trial

SPOT: dict[str, object] = {"partition": "spot"}


def nothing(_: Site, __: random.Random) -> None:
    """An undisturbed run."""


def kill_replica(site: Site, draw: random.Random) -> None:
    draw.choice(list(site.lab.replicas().values())).kill()


def kill_server(site: Site, draw: random.Random) -> None:
    """Its replica waits for a server, or ends with that cause; the others do the rest."""
    node = draw.choice(list(site.lab.replicas()))
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline()[1:2] and process.cmdline()[1].endswith("standin.py") and is_of(process, node):
                process.kill()


def requeue(site: Site, draw: random.Random) -> None:
    job = draw.choice(list(site.lab.running()))
    namespaces.run("scontrol", "requeue", job)


def preempt(site: Site, draw: random.Random) -> None:
    """Somebody with more right takes a node for a few seconds."""
    node = draw.choice(list(site.lab.running().values()))
    namespaces.run("sbatch", "-p", "main", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3")


def lose_node(site: Site, draw: random.Random) -> None:
    node = draw.choice(list(site.lab.running().values()))
    site.lab.lose_node(node)
    site.lab.start_node(node)


def split_brain(site: Site, draw: random.Random) -> None:
    """Slurm takes the node for dead and starts its task again, while the first attempt works on."""
    node = draw.choice(list(site.lab.running().values()))
    site.lab.lose_node(node, daemons_alone=True)


def restart_controller(site: Site, _: random.Random) -> None:
    site.lab.restart_controller()


def drain(site: Site, draw: random.Random) -> None:
    """What Slurm sends before the time limit."""
    job = draw.choice(list(site.lab.running()))
    namespaces.run("scancel", "--batch", "--signal=USR1", job)


FAULTS: dict[str, tuple[Strike, dict[str, object], int]] = {
    "undisturbed": (nothing, {}, 3),
    "replica-killed": (kill_replica, {}, 3),
    "server-killed": (kill_server, {}, 3),
    "requeued": (requeue, {}, 3),
    "preempted": (preempt, SPOT, 3),
    "node-lost": (lose_node, {}, 3),
    "split-brain": (split_brain, {}, 3),
    "controller-restarted": (restart_controller, {}, 3),
    "told-to-drain": (drain, {}, 3),
    "cluster-of-one": (kill_replica, {}, 1),
}
"""The fault, the cluster's settings, and its nodes."""


def one(name: str, seed: int) -> dict[str, object]:
    """A lab of its own for each trial, in namespaces of its own: this program again."""
    argv = [*namespaces.UNSHARE, sys.executable, "-m", "tests.slurm", "--inside", name, "--seed", str(seed)]
    began = time.monotonic()
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900)
    outcome = "every record delivered once" if ended.returncode == 0 else f"failed: {ended.stderr.strip()[-1500:]}"
    return {"fault": name, "seed": seed, "outcome": outcome, "seconds": round(time.monotonic() - began, 1)}


def inside(name: str, seed: int) -> int:
    strike, settings, nodes = FAULTS[name]
    draw = random.Random(seed)
    root = Path(tempfile.mkdtemp(prefix="roost-slurm-"))
    try:
        namespaces.run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")  # no other trial's dumps
        site = Site(root, Lab(root / "lab", nodes))
        site.lab.start()
        site.build(**settings)
        trial(site, strike, draw.uniform(0.05, 0.8), draw)
        return 0
    except Exception:
        traceback.print_exc()
        for log in [*site.run.glob("jobs/*.log"), root / "lab" / "log" / "slurmctld.log"]:
            with suppress(OSError):
                print(f"--- {log.name}\n{log.read_text()[-1500:]}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm")
    parser.add_argument("--only", action="append", choices=list(FAULTS))
    parser.add_argument("--inside", choices=list(FAULTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args(arguments)
    if options.inside:
        return inside(options.inside, options.seed)
    if why := lab.obstacle():
        print(why, file=sys.stderr)
        return 2
    failed = 0
    for number, name in enumerate(options.only or FAULTS):
        line = json.dumps(one(name, options.seed + number))
        failed += "failed" in line
        print(line, flush=True)
        if options.results is not None:
            with options.results.open("a") as out:
                out.write(line + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main(sys.argv[1:]))
