"""A practice Slurm: munged, slurmctld and one slurmd for each node, in one folder. Called by the demo and the tests.

Must run inside namespaces (`namespaces.enter`). The nodes share this machine's process table; a variable that slurmd
sets for its jobs says to which node a process belongs. Nothing outside the folder is read or written: no systemd, no
cgroups, no /etc/slurm.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hosts.practice import namespaces
from hosts.practice.nodes import HERE, Nodes, until

CONTROLLER_PORT, NODE_PORT = 17_000, 17_001
CONF = """
ClusterName=lab
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
PriorityType=priority/basic
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0,requeue_delay=0,bf_window=60
SlurmctldTimeout=10
SlurmdTimeout=5
KillWait=2
CompleteWait=0
BatchStartTimeout=10
MinJobAge=3600
MessageTimeout=10
{node_lines}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10 State=UP
PartitionName=spot Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=4 State=UP
"""
"""A requeued job may start again only after `cred_expire` seconds, whose smallest value is 5."""
NODE_LINE = "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs=4 RealMemory=1000"


def obstacle() -> str:
    """Return why this machine cannot run the lab; "" if it can."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is missing: apt-get install slurm-wlm munge"
    return namespaces.obstacle()


@dataclass
class Lab:
    """The daemons, which end with the namespace."""

    root: Path
    nodes: int = 3
    _nodes: Nodes = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = Nodes(self.names)

    def start(self) -> None:
        """Return once every node is idle."""
        for name in ("munge", "state", "log", *(f"spool/{name}" for name in self.names)):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        self._nodes.start()
        host = socket.gethostname().partition(".")[0]
        lines = [
            NODE_LINE.format(name=name, host=host, address=self._nodes.address(name), port=NODE_PORT)
            for name in self.names
        ]
        facts = {"root": self.root, "host": host, "address": HERE, "port": CONTROLLER_PORT}
        (self.root / "slurm.conf").write_text(CONF.format(**facts, node_lines="\n".join(lines)))
        os.environ["SLURM_CONF"] = str(self.root / "slurm.conf")
        self._start_munge()
        namespaces.run("slurmctld", "-c")
        for name in self.names:
            self.start_node(name)
        self.await_idle()

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(self.nodes)]

    def _start_munge(self) -> None:
        folder = self.root / "munge"
        key = folder / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        files = {"key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed", "socket": "sock"}
        argv = [f"--{option}={folder / name}" for option, name in files.items()]
        namespaces.run("munged", *argv, "--num-threads=2", "--force")

    def await_idle(self) -> None:
        """Wait until every node is up and idle."""
        until(lambda: self.said("sinfo", "-h", "-N", "-o", "%T", "-p", "main").split().count("idle") == self.nodes)

    def start_node(self, name: str) -> None:
        """Start a node's daemon."""
        self._nodes.on(name, "slurmd", "-N", name)

    def restart_controller(self) -> None:
        """Kill slurmctld, and start it again with the state that it has saved."""
        os.kill(int((self.root / "slurmctld.pid").read_text()), signal.SIGKILL)
        namespaces.run("slurmctld")

    def lose_node(self, name: str, *, daemons_alone: bool = False) -> None:
        """Kill everything on a node and mark it as down. With `daemons_alone`, its job lives on unknown to Slurm."""
        own = [process for process in psutil.process_iter() if is_of(process, name)]
        steps = [parent for process in own for parent in process.parents() if parent.name() == "slurmstepd"]
        os.kill(int((self.root / f"slurmd.{name}.pid").read_text()), signal.SIGKILL)
        for process in [*steps, *([] if daemons_alone else own)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        namespaces.run("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")

    def replicas(self) -> dict[str, psutil.Process]:
        """Return the replica's process for each node that has a replica."""
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                argv = process.cmdline()
                if argv[1:4] == ["-m", "remote", "replica"] and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.environ().get("SLURMD_NODENAME", "")] = process
        return found

    def settings(self) -> dict[str, object]:
        """Return this cluster's keys in an inventory, for servers without GPUs."""
        return {"engine": "slurm", "nodes": self.nodes, "gpus_per_node": 0, "drain": 30}

    def is_idle(self) -> bool:
        """Return whether the queue is empty."""
        ended = subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=False, timeout=30)
        return ended.returncode == 0 and not ended.stdout.strip()

    def version(self) -> str:
        """Return Slurm's name and version."""
        return self.said("sinfo", "--version").strip()

    def hide(self, name: str, folder: Path) -> None:
        """Mount an empty disk over a folder, for this node alone."""
        self._nodes.on(name, "mount", "-t", "tmpfs", "tmpfs", str(folder))

    def show(self, name: str, folder: Path) -> None:
        """Unmount the empty disk."""
        self._nodes.on(name, "umount", str(folder))

    def logs(self) -> list[Path]:
        """Return the log of slurmctld."""
        return [self.root / "log" / "slurmctld.log"]

    @staticmethod
    def said(*argv: str) -> str:
        """Return the output of one of Slurm's programs; "" if the program fails."""
        ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        return ended.stdout if ended.returncode == 0 else ""

    def running(self) -> dict[str, str]:
        """Return the running jobs with their nodes."""
        lines = self.said("squeue", "-h", "-t", "R", "-o", "%i %N").splitlines()
        pairs = (line.partition(" ") for line in lines if re.fullmatch(r"\S+ \S+", line.strip()))
        return {job: node.strip() for job, _, node in pairs}


def is_of(process: psutil.Process, name: str) -> bool:
    """Return whether a process belongs to a node's job."""
    try:
        return process.environ().get("SLURMD_NODENAME") == name
    except psutil.Error:
        return False
