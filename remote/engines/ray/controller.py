"""The run's one controller: the driver of the Ray job. `python -m remote.engines.ray.controller JOBS JOB MARK`.

Runs under Ray's Python, on the head node. The controller asks for a placement group of one node for each replica,
starts an actor in each group that Ray has placed, and waits. It keeps no state: it finds groups and actors by their
names, and the run's progress by the published chunks. If the controller is killed, replicas work on, and the job's
shell starts the controller again. If the job is stopped in Ray's dashboard, the run stops. Standard library and Ray
only.
"""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from remote.engines.ray.cluster import Cluster, Group, RefusedError
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


class StoppedError(Exception):
    """A person stopped the job in Ray's dashboard or with Ray's command."""


def main(jobs: Path, job: str, mark: str) -> int:
    """Control the run until no replica is left; return the job's exit code."""
    folder = Folder(jobs)
    if not folder.sees(mark):
        return _refused(
            f"the head node does not see the {jobs} of the host that submitted the run: the cluster's `workdir` must "
            "be on a file system that the head node, the other nodes and the login host share"
        )
    pool = folder.pool()
    cluster = Cluster(pool)
    controller = Controller(folder, pool, cluster, mark)
    signal.signal(signal.SIGTERM, _stopped)
    try:
        cluster.connect()
        if not folder.has_accepted(job):  # otherwise an earlier controller of this job began the run and was killed
            await_nodes(folder, cluster)
            write(folder.accepted, job)
        return controller.run()
    except RefusedError as error:
        return _refused(str(error))
    except StoppedError:
        write(folder.stop, "")
        controller.withdraw()
        return 0


def _refused(sentence: str) -> int:
    print(f"{SAID}{sentence}", flush=True)
    return REFUSED


def _stopped(_: int, __: FrameType | None) -> None:
    raise StoppedError


def await_nodes(folder: Folder, cluster: Cluster) -> None:
    """Return once the run can begin; raise RefusedError if Ray would wait for nodes in vain."""
    pool = cluster.pool
    while True:
        why = shortage(cluster.nodes(), pool)
        if not why or folder.stop.exists():
            return
        if pool.least > 0 or time.time() > pool.submitted_at + pool.join_seconds:
            raise RefusedError(why)
        time.sleep(LOOK_SECONDS)


def shortage(nodes: list[dict[str, float]], pool: Pool) -> str:
    """Return why the run cannot begin on nodes with these resources; "" if it can begin."""
    fitting = [one for one in nodes if all(one.get(name, 0) >= amount for name, amount in pool.bundle.items())]
    if fitting and len(fitting) >= pool.least:
        return ""
    if pool.bundle.get("GPU") and not any(one.get("GPU") for one in nodes):
        return f"no node of the Ray cluster at {pool.address} has a GPU; it has {len(nodes)} node(s)"
    if not fitting:
        most = {name: max((one.get(name, 0) for one in nodes), default=0) for name in pool.bundle}
        return (
            f"no node of the Ray cluster at {pool.address} has what a replica takes ({in_words(pool.bundle)}): the "
            f"most that its nodes have is {in_words(most)}, so Ray would wait for ever"
        )
    return (
        f"{len(fitting)} node(s) of the Ray cluster at {pool.address} have what a replica takes "
        f"({in_words(pool.bundle)}), but the run needs {pool.least}: start more, or lower the first number of `nodes`"
    )


@dataclass
class Controller:
    """Brings the run's groups and actors in Ray, step by step, to the number that the run needs."""

    folder: Folder
    pool: Pool
    cluster: Cluster
    mark: str
    _told: str = ""

    def run(self) -> int:
        """Return 0 when the run is over or was stopped, or NO_REPLICA_LEFT when every replica has failed."""
        while self.step():
            time.sleep(LOOK_SECONDS)
        return self._ended()

    def step(self) -> bool:
        """Ask Ray for the next groups and actors; return False if the run has none left and needs no more."""
        groups, published = self.cluster.groups(), self.folder.published()
        open_slots = [name for name in self.pool.slots if self.folder.slot(name).state not in ENDED]
        ends = self.folder.is_over or self.folder.stop.exists()
        if not groups and (ends or not open_slots):
            return False
        self._tell(len(groups), published)
        useful = 0 if ends else min(self.pool.most, max(1, self.pool.chunks - published))
        for name, group in groups.items():
            self._tend(name, group, useful)
        for name in open_slots[:useful]:
            if name not in groups:
                self.cluster.ask_for(name)
        return True

    def withdraw(self) -> None:
        """Remove every group in which no replica works."""
        for name, group in self.cluster.groups().items():
            if not group.is_placed or not self.cluster.has_actor(name):
                self.cluster.let_go(name)

    def _tend(self, name: str, group: Group, useful: int) -> None:
        """Start the actor in a group that Ray has placed; remove a group whose replica has ended or is not needed."""
        slot, has_actor = self.folder.slot(name), self.cluster.has_actor(name)
        works = group.is_placed and has_actor
        if slot.state in ENDED or (not works and int(name[1:]) >= useful):
            self.cluster.let_go(name)
        elif group.is_placed and not has_actor:
            self.cluster.put(name, str(self.folder.root), name, self.mark)
        elif works and slot.node_id != group.node_id and (cause := self.cluster.untold(name)):
            self.folder.keep(replace(slot, state=LEFT_OUT, cause=cause, since=time.time()))

    def _tell(self, groups: int, published: int) -> None:
        """Write the run's progress to the job's log, which Ray's dashboard shows."""
        at_work = [f"{slot.name} on {slot.node}" for slot in self.folder.slots() if slot.state not in ENDED]
        text = (
            f"{published} of {self.pool.chunks} chunks are published; at work: {', '.join(at_work) or 'no replica'}; "
            f"waiting for a node with {in_words(self.pool.bundle)}: {max(0, groups - len(at_work))}"
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
    """Return why replicas ended, with each cause once."""
    by_cause: dict[str, list[str]] = {}
    for slot in slots:
        by_cause.setdefault(slot.cause, []).append(slot.name)
    return "; ".join(f"{', '.join(names)}: {cause}" for cause, names in by_cause.items())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
