"""A run on a shared folder, and replicas as processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from remote.context import Context
from remote.report import Report
from remote.shared.messages.replica import ReplicaSpec
from remote.shared.messages.server import StopRequest
from remote.shared.paths import RunPaths, Workdir
from tests.remote.extract.conftest import RUN, write_assignment
from tests.remote.replica.serve_standin import dump_dir_of

CLONE = Path(__file__).parents[3]
SERVE = Path(__file__).with_name("serve_standin.py")
LENGTHS = [8 + number * 7 % 50 for number in range(60)]


@dataclass
class Cluster:
    """A shared folder with a run, and the nodes' own disks."""

    root: Path
    replicas: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def workdir(self) -> Workdir:
        return Workdir(self.root / "shared folder")

    @property
    def run(self) -> RunPaths:
        return self.workdir.run(RUN)

    @property
    def login(self) -> Context:
        """As the verbs on the login host see the run."""
        return Context(self.workdir, Report(sys.stderr))

    def scratch(self, node: str) -> Path:
        return self.root / f"node-{node}"

    def prepare(self, delay: float = 0.01, **fields: object) -> None:
        """Share a run out."""
        write_assignment(self.run.assignment(1), LENGTHS, host="cluster", in_flight_tokens=200)
        command = [sys.executable, str(SERVE), str(delay), "64"]
        values = {"epoch": 1, "chunk_tokens": 150, "serve_with": command, "lease_seconds": 5.0, **fields}
        self.run.replicas.write_text(ReplicaSpec.model_validate(values).model_dump_json())
        self.run.replicas.chmod(0o600)

    def start(self, name: str, node: str, *, tied: bool = False) -> subprocess.Popen[bytes]:
        """A replica on a node, as an engine starts it; a tied one ends with its stdin."""
        argv = [sys.executable, "-m", "remote", "replica", "--folder", str(self.run.root), "--name", name]
        argv += ["--scratch", str(self.scratch(node)), "--workdir", str(self.scratch(node)), "--output", "log"]
        argv += ["--tied", str(tied).lower()]
        stdin = subprocess.PIPE if tied else subprocess.DEVNULL
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(argv, cwd=CLONE, stdin=stdin, stdout=log, stderr=log)
        self.replicas.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    from remote.servers.lifecycle.stop import stop

    for process in made.replicas:
        if process.poll() is None:
            process.kill()
            process.wait()
    for scratch in tmp_path.glob("node-*"):
        stop(StopRequest(grace_seconds=1.0, wait_for_lock=True), Context(Workdir(scratch), Report(sys.stderr)))
        shutil.rmtree(dump_dir_of(scratch), ignore_errors=True)
