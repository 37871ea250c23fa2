"""`python -m tests.slurm.commands`: the commands of a person on a real Slurm, and their output. Inside namespaces.

Ends with 0 if every command printed and did the right things.
"""

from __future__ import annotations

import json
import sys

from hosts.practice import namespaces
from hosts.practice.nodes import until
from hosts.practice.slurm.lab import Lab
from tests.clusters.suite import tried
from tests.clusters.trial import CLUSTER, RUN, Site

SLOW_SECONDS = 5.0
"""The time for a record, so that the run is not over while commands are typed."""
HERE = ["--cluster", CLUSTER, "--run", RUN]


def type_everything(site: Site[Lab]) -> None:
    """Refuse a folder that is not shared, submit a run, show its state, and end its jobs but no others."""
    for name in site.lab.names:
        site.lab.hide(name, site.shared)
    refused = site.inv("extract", *HERE)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "does not see" in refused.stderr, refused.stderr
    assert "so nothing was submitted" in refused.stderr, refused.stderr
    until(site.lab.is_idle)
    for name in site.lab.names:
        site.lab.show(name, site.shared)
    namespaces.run("sbatch", "--hold", "--job-name=foreign", "-o", "/dev/null", "--wrap", "true")
    other = site.lab.said("squeue", "-h", "-n", "foreign", "-o", "%i").strip()
    namespaces.run("scontrol", "update", "nodename=n1,n2", "state=drain", "reason=upkeep")
    submitted = said(site, "extract", *HERE)
    assert "submitted as job" in submitted, submitted
    until(lambda: len(site.lab.running()) == 1)
    table = said(site, "status", *HERE)
    print(table)
    assert "RUNNING" in table, table
    assert "n0" in table, table
    assert "PENDING" in table, table
    again = said(site, "extract", *HERE)
    assert "is in the queue already" in again, again
    rows = json.loads(said(site, "status", *HERE, "--json"))
    assert rows, rows
    would = said(site, "stop", *HERE, "--dry-run")
    assert "would be cancelled" in would, would
    assert len(site.lab.running()) == 1
    ended = said(site, "stop", *HERE)
    print(ended)
    assert "cancelled" in ended, ended
    until(lambda: site.lab.said("squeue", "-h", "-o", "%i").split() == [other])
    until(lambda: not site.lab.replicas())
    assert "no job of this run is in the queue" in said(site, "status", *HERE)
    wrong = site.inv("stop", "--cluster", CLUSTER, "--hosts", "all")
    assert wrong.returncode == 2, wrong.stdout
    assert "cannot be combined with --cluster" in wrong.stderr, wrong.stderr


def said(site: Site[Lab], *words: str) -> str:
    """Return the output of a command; raise AssertionError if it fails."""
    ended = site.inv(*words)
    assert ended.returncode == 0, f"inv {' '.join(words)} ended with {ended.returncode}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def main() -> int:
    """Build a lab and type the commands. If they fail, print the traceback and the logs of Slurm and the jobs."""
    return tried(lambda root: Lab(root, 3), type_everything, {}, SLOW_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
