"""The run's one controller: the driver of the Ray job. `python -m remote.engines.ray.controller JOBS JOB MARK`.

Runs under Ray's Python, on the head node. It asks for a placement group of one node for each replica, puts an actor
into each that Ray has placed, and waits. It remembers nothing: it finds groups and actors again by their names, and how
far the run is by its published chunks. If it is killed, replicas work on, and the job's shell starts it again.
Standard library and Ray only.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.engines.ray import actor as actor_module
from remote.engines.ray import folder as folder_module
from remote.engines.ray.actor import Replica
from remote.engines.ray.folder import (
    ENDED,
    FAILED,
    LEFT_OUT,
    NO_REPLICA_LEFT,
    REFUSED,
    SAID,
    Folder,
    Pool,
    Slot,
    in_words,
    write,
)

LOOK_SECONDS = 2.0
STRATEGY = "STRICT_PACK"


class RefusedError(Exception):
    """The run cannot be done on this cluster as it was asked for."""


def main(jobs: Path, job: str, mark: str) -> int:
    """Control the run until no replica is left; returns the job's exit code."""
    folder = Folder(jobs)
    if not folder.sees(mark):
        return _refused(
            f"the head node does not see {jobs} as the host does from which the run was submitted: the cluster's "
            "`workdir` must lie on a file system that the head node, the other nodes and the login host share"
        )
    pool = folder.pool()
    try:
        _connect(pool)
        await_nodes(folder, pool)
    except RefusedError as error:
        return _refused(str(error))
    write(folder.accepted, job)
    return Controller(folder, pool, mark).run()


def _refused(sentence: str) -> int:
    print(f"{SAID}{sentence}", flush=True)
    return REFUSED


def _connect(pool: Pool) -> None:
    try:
        import ray
    except ImportError as error:
        raise RefusedError(
            f"{sys.executable} on the head node has no Ray: name one that has it as `ray_python`"
        ) from error
    try:
        ray.init(address="auto", namespace=pool.namespace, log_to_driver=False, logging_level="ERROR")
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        raise RefusedError(
            f"{sys.executable} on the head node has Ray {ray.__version__} for Python {sys.version.split()[0]}, and the "
            "cluster runs another version: name the Python with which it was started as `ray_python`"
        ) from error
    for module in (actor_module, folder_module):
        ray.cloudpickle.register_pickle_by_value(module)


def await_nodes(folder: Folder, pool: Pool) -> None:
    """Return once the run can begin; raises RefusedError for what Ray would wait for in vain."""
    while True:
        why = shortage(_resources(), pool)
        if not why or folder.stop.exists():
            return
        if pool.least > 0 or time.time() > pool.submitted_at + pool.join_seconds:
            raise RefusedError(why)
        time.sleep(LOOK_SECONDS)


def shortage(nodes: list[dict[str, float]], pool: Pool) -> str:
    """Why the run cannot begin on nodes with these resources; "" if it can."""
    fitting = [one for one in nodes if all(one.get(name, 0) >= amount for name, amount in pool.bundle.items())]
    if fitting and len(fitting) >= pool.least:
        return ""
    if pool.bundle.get("GPU") and not any(one.get("GPU") for one in nodes):
        return f"no node of the Ray cluster at {pool.address} has a GPU; it has {len(nodes)} node(s)"
    if not fitting:
        most = {name: max((one.get(name, 0) for one in nodes), default=0) for name in pool.bundle}
        return (
            f"no node of the Ray cluster at {pool.address} has what a replica takes, {in_words(pool.bundle)}: the most "
            f"that its nodes have is {in_words(most)}, so Ray would wait for ever"
        )
    return (
        f"{len(fitting)} node(s) of the Ray cluster at {pool.address} have what a replica takes, "
        f"{in_words(pool.bundle)}, and {pool.least} must be there: start more, or lower the first number of `nodes`"
    )


def _resources() -> list[dict[str, float]]:
    import ray

    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


@dataclass
class Controller:
    """What Ray has of the run, brought step by step to what the run needs."""

    folder: Folder
    pool: Pool
    mark: str
    _told: str = ""

    def run(self) -> int:
        """Return 0 once the run is over or was stopped, and another code if every replica failed."""
        while True:
            groups = self._groups()
            open_slots = [name for name in self.pool.slots if self.folder.slot(name).state not in ENDED]
            ends = self.folder.is_over or self.folder.stop.exists()
            if not groups and (ends or not open_slots):
                return self._ended()
            self._tell(len(groups))
            for name, group in groups.items():
                self._tend(name, group, ends=ends)
            for name in open_slots[: 0 if ends else self._wanted()]:
                if name not in groups:
                    self._ask_for(name)
            time.sleep(LOOK_SECONDS)

    def _wanted(self) -> int:
        """Replicas that still have something to do."""
        return max(1, min(self.pool.most, self.pool.chunks - self.folder.published()))

    def _groups(self) -> dict[str, dict[str, Any]]:
        """The run's placement groups in Ray, by their replicas' names."""
        from ray.util.placement_group import placement_group_table

        prefix = self.pool.group("")
        table = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
        return {group["name"].removeprefix(prefix): group for group in table if group["name"].startswith(prefix)}

    def _tend(self, name: str, group: dict[str, Any], *, ends: bool) -> None:
        """Put the actor into a group that Ray has placed; let go of a group that nobody needs."""
        slot = self.folder.slot(name)
        has_actor = _has_actor(name)
        if slot.state in ENDED or (ends and not has_actor) or (group["state"] == "PENDING" and self._is_surplus(name)):
            self._let_go(name)
        elif group["state"] == "CREATED" and not has_actor:
            self._put(name)
        elif has_actor and slot.attempt < 0 and (cause := _untold(name)):
            self.folder.keep(Slot(name, LEFT_OUT, cause=cause, since=time.time()))

    def _is_surplus(self, name: str) -> bool:
        return not _has_actor(name) and int(name[1:]) >= self._wanted()

    def _ask_for(self, name: str) -> None:
        from ray.util.placement_group import placement_group

        placement_group([self.pool.bundle], strategy=STRATEGY, name=self.pool.group(name), lifetime="detached")

    def _let_go(self, name: str) -> None:
        from ray.util import get_placement_group
        from ray.util.placement_group import remove_placement_group

        with suppress(ValueError):
            remove_placement_group(get_placement_group(self.pool.group(name)))

    def _put(self, name: str) -> None:
        import ray
        from ray.util import get_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        others = {key: amount for key, amount in self.pool.bundle.items() if key not in ("CPU", "GPU")}
        place = PlacementGroupSchedulingStrategy(get_placement_group(self.pool.group(name)), 0)
        ray.remote(Replica).options(
            name=name,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,  # the actor counts its failures itself: Ray would count lost nodes too
            num_cpus=self.pool.bundle.get("CPU", 0),
            num_gpus=self.pool.bundle.get("GPU", 0),
            resources=others,
            scheduling_strategy=place,
        ).remote(str(self.folder.root), name, self.mark)

    def _tell(self, groups: int) -> None:
        """Say in the job's log, which Ray's dashboard shows, how far the run is."""
        at_work = [f"{slot.name} on {slot.node}" for slot in self.folder.slots() if slot.state not in ENDED]
        text = (
            f"{self.folder.published()} of {self.pool.chunks} chunks are published; at work: "
            f"{', '.join(at_work) or 'nobody'}; waiting for a node with {in_words(self.pool.bundle)}: "
            f"{max(0, groups - len(at_work))}"
        )
        if text != self._told:
            print(text, flush=True)
            self._told = text

    def _ended(self) -> int:
        if self.folder.is_over:
            print("every chunk is published", flush=True)
            return 0
        if self.folder.stop.exists():
            print("the run was stopped", flush=True)
            return 0
        lost = [slot for slot in self.folder.slots() if slot.state in (FAILED, LEFT_OUT)]
        print(f"{SAID}no replica is left: {causes(lost)}", flush=True)
        return NO_REPLICA_LEFT


def causes(slots: list[Slot]) -> str:
    """Why replicas ended, each cause once."""
    by_cause: dict[str, list[str]] = {}
    for slot in slots:
        by_cause.setdefault(slot.cause, []).append(slot.name)
    return "; ".join(f"{', '.join(names)}: {cause}" for cause, names in by_cause.items())


def _has_actor(name: str) -> bool:
    import ray

    try:
        ray.get_actor(name)
    except ValueError:
        return False
    return True


def _untold(name: str) -> str:
    """What an actor has to say that cannot write it into the run's folder."""
    import ray

    try:
        return str(ray.get(ray.get_actor(name).untold.remote(), timeout=LOOK_SECONDS))
    except (ValueError, ray.exceptions.RayError):  # it is gone, or has not started yet
        return ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
