"""A practice Ray: a head and worker nodes with pretended GPUs, in one folder. Called by the demo and the tests.

Must run inside namespaces (`namespaces.enter`), because Ray listens on every interface that it sees. Each node has its
own network and `/dev/shm` (`hosts.practice.nodes`). The nodes share this machine's disks and process table; an
environment variable says to which node a process belongs. Ray is installed in a separate venv, `.ray` (`make ray`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hosts.practice import namespaces
from hosts.practice.nodes import HERE, Nodes, until
from remote.shared.files import write_whole

NODE = "ROOST_PRACTICE_NODE"
HEAD = "head"
PORT, DASHBOARD = 6_379, 8_265
ADDRESS = f"http://127.0.0.1:{DASHBOARD}"
GPUS, CPUS = 8, 2
STORE_BYTES = 80_000_000
START_SECONDS = 180.0
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_open_telemetry": "0",
    "RAY_metrics_report_interval_ms": "0",
    "RAY_raylet_start_wait_time_s": "120",
    # A node that does not answer for two seconds is taken for dead; Ray's own defaults take half a minute.
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "8",
    # Practice servers share this machine's cores with everything else on it.
    "RAY_worker_niceness": "0",
}


def obstacle(root: Path) -> str:
    """Return why this machine cannot run the lab; "" if it can."""
    if not (root / ".ray" / "bin" / "ray").exists():
        return "Ray is not installed here: make ray"
    return namespaces.obstacle()


@dataclass
class Lab:
    """The daemons, which end with the namespace."""

    root: Path
    venv: Path
    """The venv in which Ray is installed."""
    nodes: int = 3
    absent: frozenset[str] = frozenset()
    """Nodes that are not started at first."""
    slower: dict[str, int] = field(default_factory=dict)
    """For a slow node, the factor by which its servers take longer than those of the other nodes."""
    token: str = ""
    """The token that every request must carry; "" if the cluster requires no token."""
    _nodes: Nodes = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = Nodes(self.names)

    @property
    def names(self) -> list[str]:
        """Every node, including the nodes that are not started at first."""
        return [f"n{number}" for number in range(self.nodes)]

    def start(self) -> None:
        """Return once every node that is not absent has joined."""
        self.root.mkdir(parents=True, exist_ok=True)
        if self.token:
            write_whole(self._token_file, self.token.encode())
            os.environ["RAY_AUTH_TOKEN_PATH"] = str(self._token_file)
        self._nodes.start()
        self.start_head()
        for name in self.names:
            if name not in self.absent:
                self.start_node(name)

    def start_head(self) -> None:
        """Start the head, which has neither GPUs nor CPUs, and return once its job server answers."""
        self._ray(
            HEAD, [], "--head", f"--port={PORT}", f"--node-ip-address={HERE}", f"--temp-dir={self.root / 's'}",
            "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={DASHBOARD}",
            "--num-cpus=0", "--num-gpus=0",
        )  # fmt: skip
        until(self._answers, START_SECONDS)

    def start_node(self, name: str) -> None:
        """Start a node, which joins the cluster."""
        self._ray(
            name, self._nodes.entering(name), f"--address={HERE}:{PORT}",
            f"--node-ip-address={self._nodes.address(name)}", f"--num-cpus={CPUS}", f"--num-gpus={GPUS}",
        )  # fmt: skip

    def kill_raylet(self, name: str) -> None:
        """Kill a node's daemon alone. The processes that it started must notice this themselves."""
        self._kill([process for process in self.processes(name) if process.name() == "raylet"])

    def lose_node(self, name: str) -> None:
        """Kill everything on a node."""
        self._kill(self.processes(name))

    def cover(self, name: str, folder: Path) -> None:
        """Mount an empty disk over a folder, for this node alone, and start the node again."""
        self.lose_node(name)
        self._nodes.on(name, "mount", "-t", "tmpfs", "tmpfs", str(folder))
        self.start_node(name)

    def restart_head(self) -> None:
        """Kill the head, whose state is lost, and start head and nodes again, as their service managers would."""
        self.lose_node(HEAD)
        until(lambda: not any(self._raylets(name) for name in self.names), START_SECONDS)
        self.start_head()
        for name in self.names:
            self.start_node(name)

    def processes(self, name: str) -> list[psutil.Process]:
        """Return every process on a node: daemons, actors, replicas, servers."""
        return [process for process in psutil.process_iter() if node_of(process) == name]

    def replicas(self) -> dict[str, psutil.Process]:
        """Return the replica's process for each node that has a replica."""
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cmdline()[1:4] == ["-m", "remote", "replica"] and process.status() != psutil.STATUS_ZOMBIE:
                    found[node_of(process)] = process
        return found

    def controllers(self) -> list[psutil.Process]:
        """Return the processes of the runs' controllers."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cmdline()[1:3] == ["-m", "remote.engines.ray.controller"]:
                    found.append(process)
        return found

    def settings(self) -> dict[str, object]:
        """Return this cluster's keys in an inventory."""
        return {
            "engine": "ray",
            "address": ADDRESS,
            "nodes": [1, self.nodes],
            "gpus_per_node": GPUS,
            "ray_python": str(self.venv / "bin" / "python"),
        }

    def is_idle(self) -> bool:
        """Return whether Ray has neither a running job nor a replica's placement group."""
        jobs = self._get("/api/jobs/")
        groups = self._get("/api/v0/placement_groups?limit=1000")
        if not isinstance(jobs, list) or not isinstance(groups, dict):
            return False
        states = [group["state"] for group in groups["data"]["result"]["result"]]
        return all(job["status"] not in ("PENDING", "RUNNING") for job in jobs) and set(states) <= {"REMOVED"}

    def version(self) -> str:
        """Return Ray's version from its job server; "" if the server does not answer."""
        told = self._get("/api/version")
        return f"Ray {told['ray_version']}" if isinstance(told, dict) else ""

    def logs(self) -> list[Path]:
        """Return the logs of the jobs' controllers."""
        return sorted(self.root.glob("s/session_latest/logs/job-driver-*.log"))

    @property
    def _token_file(self) -> Path:
        return self.root / "token"

    def _answers(self) -> bool:
        return self._get("/api/version") is not None

    def _get(self, path: str) -> object:
        """Return the answer of the head's HTTP server; None if it does not answer."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(urllib.request.Request(ADDRESS + path, headers=headers), timeout=10) as answer:  # noqa: S310
                told: object = json.load(answer)
        except (OSError, ValueError):
            return None
        return told

    def _raylets(self, name: str) -> list[psutil.Process]:
        return [process for process in self.processes(name) if process.name() == "raylet"]

    def _ray(self, name: str, entering: list[str], *options: str) -> None:
        """Run `ray start` for a node; raise AssertionError with its output if it fails."""
        slower = {"ROOST_PRACTICE_SLOWER": str(self.slower.get(name, 1))}
        kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        mode = {"RAY_AUTH_MODE": "token" if self.token else "disabled"}
        environ = {
            **kept,
            **SETTINGS,
            **mode,
            **slower,
            NODE: name,
            "PATH": f"{self.venv / 'bin'}:{os.environ['PATH']}",
        }
        argv = [*entering, str(self.venv / "bin" / "ray"), "start", *options, f"--node-name={name}"]
        argv += [f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"]
        with (self.root / f"{name}.out").open("w+") as out:
            ended = subprocess.run(
                argv, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False, timeout=START_SECONDS
            )
            out.seek(0)
            assert ended.returncode == 0, f"{name} did not start: {out.read()[-1000:]}"

    @staticmethod
    def _kill(processes: list[psutil.Process]) -> None:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


def node_of(process: psutil.Process) -> str:
    """Return the node to which a process belongs; "" if it belongs to no node."""
    try:
        return str(process.environ().get(NODE, ""))
    except psutil.Error:
        return ""
