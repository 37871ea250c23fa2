"""Ray's controller, step by step, over a pretended Ray: whom it asks for, puts in place, lets go of."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote.engines.ray import engine
from remote.engines.ray.cluster import Cluster, Group, RefusedError
from remote.engines.ray.controller import Controller, await_nodes
from remote.engines.ray.folder import FAILED, LEFT_OUT, NO_REPLICA_LEFT, OVER, RUNS, Folder, Pool, Slot
from remote.shared.messages.jobs import RayPool
from remote.shared.paths import RunPaths

PLACED, WAITING, LOST = Group("CREATED", "node-1"), Group("PENDING", ""), Group("RESCHEDULING", "node-1")


class PretendedRay(Cluster):
    """Has what a test says, and remembers what it was asked for."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.__dict__.update(has={}, actors=set(), asked=[], gone=[], putting=[], says={}, there=[])

    has: dict[str, Group]
    actors: set[str]
    asked: list[str]
    gone: list[str]
    putting: list[str]
    says: dict[str, str]
    there: list[dict[str, float]]

    def nodes(self) -> list[dict[str, float]]:
        return self.there

    def groups(self) -> dict[str, Group]:
        return dict(self.has)

    def ask_for(self, name: str) -> None:
        self.asked.append(name)

    def let_go(self, name: str) -> None:
        self.gone.append(name)

    def has_actor(self, name: str) -> bool:
        return name in self.actors

    def put(self, name: str, *arguments: str) -> None:
        self.putting.append(name)

    def untold(self, name: str) -> str:
        return self.says.get(name, "")


def controller(root: Path, chunks: int = 10, **own: object) -> tuple[Controller, PretendedRay]:
    jobs = RunPaths(root / "kimi-1").jobs
    jobs.mkdir(parents=True)
    given = {"address": "http://head:8265", "least": 1, "most": 3, "bundle": {"GPU": 8.0}, **own}
    pool = engine._pool(RayPool.model_validate(given), "job", "kimi-1", Path("/payload"), chunks)
    ray = PretendedRay(pool)
    return Controller(Folder(jobs), pool, ray, "mark"), ray


def publish(made: Controller, chunks: int) -> None:
    for chunk in range(chunks):
        (made.folder.run / "queue" / "published" / "0" / str(chunk)).mkdir(parents=True)


def test_replicas_are_asked_for_up_to_the_upper_bound(tmp_path: Path) -> None:
    made, ray = controller(tmp_path)
    assert made.step()
    assert ray.asked == ["r0", "r1", "r2"]


def test_no_more_replicas_are_asked_for_than_chunks_are_left(tmp_path: Path) -> None:
    made, ray = controller(tmp_path)
    publish(made, 8)
    ray.has = {"r0": PLACED, "r2": WAITING}
    ray.actors = {"r0"}
    assert made.step()
    assert (ray.asked, ray.gone) == (["r1"], ["r2"])


def test_an_actor_is_put_where_ray_has_placed_a_group(tmp_path: Path) -> None:
    made, ray = controller(tmp_path)
    ray.has = {"r0": PLACED, "r1": WAITING, "r2": PLACED}
    ray.actors = {"r2"}
    assert made.step()
    assert (ray.putting, ray.asked, ray.gone) == (["r0"], [], [])


def test_a_replica_that_ended_is_not_asked_for_again(tmp_path: Path) -> None:
    made, ray = controller(tmp_path)
    made.folder.keep(Slot("r1", FAILED, cause="no model"))
    ray.has = {"r1": PLACED}
    assert made.step()
    assert (ray.asked, ray.gone) == (["r0", "r2"], ["r1"])


def test_a_group_that_lost_its_node_does_not_hold_a_run_that_is_over(tmp_path: Path) -> None:
    made, ray = controller(tmp_path)
    made.folder.keep(Slot("r0", RUNS, "n1", "node-1", 0))
    (made.folder.run / "queue").mkdir()
    (made.folder.run / "queue" / "over").touch()
    ray.has = {"r0": LOST, "r1": PLACED, "r2": WAITING}
    ray.actors = {"r0", "r1"}
    assert made.step()
    assert (ray.gone, ray.asked) == (["r0", "r2"], [])
    ray.has = {}
    assert not made.step()
    assert made.run() == 0


def test_what_an_actor_cannot_write_is_written_for_it(tmp_path: Path) -> None:
    made, ray = controller(tmp_path)
    made.folder.keep(Slot("r0", RUNS, "n0", "node-0", 1))
    made.folder.keep(Slot("r1", RUNS, "n1", "node-1", 1))
    ray.has = {"r0": PLACED, "r1": PLACED}
    ray.actors, ray.says = {"r0", "r1"}, {"r0": "the node does not see it", "r1": "never asked"}
    assert made.step()
    assert (made.folder.slot("r0").state, made.folder.slot("r0").cause) == (LEFT_OUT, "the node does not see it")
    assert made.folder.slot("r1").state == RUNS


def test_a_run_without_replicas_left_ends_with_their_causes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = controller(tmp_path, most=1)
    made.folder.keep(Slot("r0", FAILED, cause="no model"))
    assert made.run() == NO_REPLICA_LEFT
    assert "roost: no replica is left: r0: no model" in capsys.readouterr().out


def test_a_stopped_job_withdraws_what_nobody_works_in(tmp_path: Path) -> None:
    made, ray = controller(tmp_path)
    ray.has = {"r0": PLACED, "r1": LOST, "r2": WAITING}
    ray.actors = {"r0", "r1"}
    made.withdraw()
    assert ray.gone == ["r1", "r2"]


def test_an_ended_run_of_other_size_leaves_no_group(tmp_path: Path) -> None:
    made, ray = controller(tmp_path, most=1)
    made.folder.keep(Slot("r0", OVER))
    ray.has = {"r5": WAITING}
    assert made.step()
    assert ray.gone == ["r5"]


def test_without_a_lower_bound_the_first_node_may_come_later_but_not_never(tmp_path: Path) -> None:
    made, ray = controller(tmp_path, least=0, join_seconds=0.0)
    ray.there = [{"CPU": 4}]
    with pytest.raises(RefusedError, match="has a GPU"):
        await_nodes(made.folder, ray)
    ray.there = [{"GPU": 8}]
    await_nodes(made.folder, ray)
