"""A real Slurm on loopback: munged, slurmctld and a slurmd a node, in one folder. Inside network and PID namespaces.

The nodes share this machine, its file system and its process table; what belongs to a node is told by the environment
that slurmd gives its jobs. Nothing outside the folder is read or written: no systemd, no cgroups, no /etc/slurm.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.faults import namespaces

BASE_PORT = 17_000
START_SECONDS = 30.0
CONF = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/sock,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
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
NodeName=n[0-{last}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs=4 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10 State=UP
PartitionName=spot Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=4 State=UP
"""
"""cred_expire bounds how soon a requeued job may start again, and its smallest value is 5."""


def obstacle() -> str:
    """Why this machine cannot run the lab; "" if it can."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is missing: apt-get install slurm-wlm munge"
    return namespaces.obstacle()


@dataclass
class Lab:
    """The daemons; they end with the namespace."""

    root: Path
    nodes: int = 3

    def start(self) -> None:
        """Return once every node is idle."""
        namespaces.run("ip", "address", "add", "127.0.0.2/8", "dev", "lo")  # glibc ignores 127.0.0.1 when it resolves
        for name in ("munge", "state", "log", *(f"spool/n{number}" for number in range(self.nodes))):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        key = self.root / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        last = self.nodes - 1
        ports = {"port": BASE_PORT, "first_port": BASE_PORT + 100, "last_port": BASE_PORT + 100 + last}
        host = socket.gethostname().partition(".")[0]
        (self.root / "slurm.conf").write_text(CONF.format(root=self.root, host=host, last=last, **ports))
        os.environ["SLURM_CONF"] = str(self.root / "slurm.conf")
        munge = [
            f"--{name}={self.root}/munge/{name.partition('-')[0]}" for name in ("key-file", "pid-file", "log-file")
        ]
        seed, sock = f"--seed-file={self.root}/munge/seed", f"--socket={self.root}/munge/sock"
        namespaces.run("munged", *munge, seed, sock, "--num-threads=2", "--force")
        namespaces.run("slurmctld", "-c")
        for number in range(self.nodes):
            self.start_node(f"n{number}")
        self.await_idle()

    def await_idle(self) -> None:
        """Wait until no node does anything and all are there."""
        until(lambda: self.said("sinfo", "-h", "-N", "-o", "%T", "-p", "main").split().count("idle") == self.nodes)

    def start_node(self, name: str) -> None:
        """Start a node's daemon."""
        namespaces.run("slurmd", "-N", name)

    def restart_controller(self) -> None:
        """SIGKILL slurmctld and start it again with what it had saved."""
        os.kill(int((self.root / "slurmctld.pid").read_text()), signal.SIGKILL)
        namespaces.run("slurmctld")

    def lose_node(self, name: str, *, daemons_alone: bool = False) -> None:
        """Lose a node; with `daemons_alone` its job lives on, and Slurm takes it for dead."""
        own = [process for process in psutil.process_iter() if is_of(process, name)]
        steps = [parent for process in own for parent in process.parents() if parent.name() == "slurmstepd"]
        os.kill(int((self.root / f"slurmd.{name}.pid").read_text()), signal.SIGKILL)
        for process in [*steps, *([] if daemons_alone else own)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        namespaces.run("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")

    def replicas(self) -> dict[str, psutil.Process]:
        """The replica of each node that has one."""
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                argv = process.cmdline()
                if argv[1:4] == ["-m", "remote", "replica"] and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.environ().get("SLURMD_NODENAME", "")] = process
        return found

    @staticmethod
    def said(*argv: str) -> str:
        """What a program of Slurm says; "" if it fails."""
        ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        return ended.stdout if ended.returncode == 0 else ""

    def running(self) -> dict[str, str]:
        """Jobs that run, with their nodes."""
        lines = self.said("squeue", "-h", "-t", "R", "-o", "%i %N").splitlines()
        pairs = (line.partition(" ") for line in lines if re.fullmatch(r"\S+ \S+", line.strip()))
        return {job: node.strip() for job, _, node in pairs}


def until(condition: object, seconds: float = START_SECONDS) -> None:
    """Wait for a condition; raises AssertionError if it does not come."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(0.05)


def is_of(process: psutil.Process, name: str) -> bool:
    """Whether a process belongs to a node's job."""
    try:
        return process.environ().get("SLURMD_NODENAME") == name
    except psutil.Error:
        return False
