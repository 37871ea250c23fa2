"""The actor of a replica on Ray, over a replica that a test writes; no Ray runs here."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from remote.engines.ray import actor, engine
from remote.engines.ray.actor import FAILURES, Replica
from remote.engines.ray.folder import FAILED, LEFT_OUT, OVER, RUNS, STOPPED, Folder, Slot
from remote.shared.messages.jobs import RayPool
from remote.shared.paths import RunPaths
from tests.remote.extract.standin_process import until


class Node:
    """One node, on which the replica is a program of the test's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        jobs = RunPaths(root / "shared" / "kimi-1").jobs
        jobs.mkdir(parents=True)
        (jobs.parent / "queue").mkdir()
        self.folder = Folder(jobs)
        self.folder.mark.write_text("mark")
        self.given_back = threading.Event()
        (root / "payload" / "remote").mkdir(parents=True)
        order = RayPool.model_validate(
            {
                **{"address": "http://head:8265", "least": 1, "most": 3, "bundle": {"GPU": 8.0}},
                **{"python": sys.executable, "scratch": str(root / "scratch")},
            }
        )
        self.folder.keep_pool(engine._pool(order, "job", "kimi-1", root / "payload", 10))

    def replica_is(self, program: str) -> None:
        (self.root / "payload" / "remote" / "__main__.py").write_text(f"import os, signal, sys, time\n{program}\n")

    def over(self) -> str:
        """A program's line that ends the run."""
        return f"open({str(self.folder.run / 'queue' / 'over')!r}, 'w')"

    def live(self, mark: str = "mark") -> Replica:
        """Start the replica's actor, and wait for its end."""
        started = Replica(str(self.folder.root), "r0", mark)
        assert self.given_back.wait(30)
        return started

    def replicas(self) -> list[psutil.Process]:
        """The replica's processes; other tests of this process have children too."""
        found = []
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if str(self.folder.run) in child.cmdline():
                    found.append(child)
        return found

    @property
    def slot(self) -> Slot:
        return self.folder.slot("r0")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setattr(actor, "_here", lambda: ("node-1", "n1"))
    monkeypatch.setattr(actor, "_gpus", lambda: [str(number) for number in range(12)])
    monkeypatch.setattr(actor, "_living_nodes", lambda: {"node-1"})
    monkeypatch.setattr(actor, "_give_back", made.given_back.set)
    monkeypatch.setattr(actor, "LOOK_SECONDS", 0.05)
    return made


def test_a_replica_that_ends_with_its_run_gives_its_node_back(node: Node) -> None:
    node.replica_is(node.over())
    node.live()
    assert (node.slot.state, node.slot.node, node.slot.attempt, node.slot.failures) == (OVER, "n1", 0, 0)


def test_a_failed_replica_is_started_again_and_the_last_cause_is_kept(node: Node) -> None:
    node.replica_is("print('[now] ERROR host: the server died.', file=sys.stderr); sys.exit(1)")
    node.live()
    assert (node.slot.state, node.slot.attempt, node.slot.failures) == (FAILED, FAILURES, FAILURES + 1)
    assert node.slot.cause == "the server died on n1"


def test_a_refused_replica_is_not_started_again(node: Node) -> None:
    node.replica_is("print('[now] ERROR usage: no model here.', file=sys.stderr); sys.exit(2)")
    node.live()
    assert (node.slot.state, node.slot.attempt, node.slot.cause) == (LEFT_OUT, 0, "no model here")


def test_a_replica_is_drained_when_the_run_is_stopped(node: Node) -> None:
    node.replica_is(
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0)); "
        f"open({str(node.folder.stop)!r}, 'w')\ntime.sleep(60)\nsys.exit(1)"
    )
    node.live()
    assert (node.slot.state, node.slot.failures) == (STOPPED, 0)


@pytest.mark.parametrize(
    ("before", "failures", "cause"),
    [("node-1", 1, "its actor's process on n1 was killed"), ("node-0", 0, "the node n0 was lost")],
)
def test_a_killed_actor_counts_as_a_failure_and_a_lost_node_does_not(
    node: Node, before: str, failures: int, cause: str
) -> None:
    node.folder.keep(Slot("r0", RUNS, before.replace("node-", "n"), before, 0))
    node.folder.next_attempt("r0")
    node.replica_is(node.over())
    node.live()
    assert (node.slot.state, node.slot.attempt, node.slot.failures) == (OVER, 1, failures)
    assert node.slot.cause.startswith(cause)


def test_a_node_that_does_not_see_the_folder_keeps_its_word_for_the_controller(node: Node) -> None:
    started = Replica(str(node.folder.root), "r0", "another mark")
    until(lambda: bool(started.untold()), "the refusal")
    assert "n1 does not see" in started.untold()
    assert not node.given_back.is_set()
    assert node.folder.slots() == []


def test_a_replica_that_got_another_part_of_a_node_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "_gpus", lambda: ["4", "5"])
    node.live()
    assert "Ray gave it the GPUs 4, 5 of n1, but a replica takes a whole node" in node.slot.cause


def test_a_scratch_folder_that_is_a_link_is_refused(node: Node, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / f"roost-{os.getuid()}-n1-kimi-1").symlink_to(tmp_path / "elsewhere")
    node.live()
    assert (node.slot.state, list((tmp_path / "elsewhere").iterdir())) == (LEFT_OUT, [])


def test_the_replica_has_nothing_of_ray_s_own_environment(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("KEPT", "1")
    kept = "[name for name in os.environ if name.startswith('RAY_') or name in ('OMP_NUM_THREADS', 'KEPT')]"
    node.replica_is(f"print('[now] ERROR host:', {kept}, file=sys.stderr); sys.exit(2)")
    node.live()
    assert node.slot.cause == "['KEPT']"


def test_a_killed_replica_is_started_again(node: Node) -> None:
    node.replica_is("time.sleep(60)")
    Replica(str(node.folder.root), "r0", "mark")
    until(lambda: bool(node.replicas()), "the replica")
    (child,) = node.replicas()
    child.send_signal(signal.SIGKILL)
    until(lambda: node.slot.attempt > 0, "the next attempt")
    node.folder.stop.touch()
    for left in node.replicas():
        left.kill()
    assert node.given_back.wait(30)
