"""The actor of one replica, under Ray's Python on the node. The actor starts `python -m remote replica` and awaits it.

Ray gets this module by value, so the actor also runs on a node that does not see the shared folder, and reports that.
A pipe ties the replica to the actor: the kernel closes the pipe in every way in which the actor can end, and then the
replica's guard ends the servers. Ray starts a killed actor again, on another node if its node is gone. Standard library
and Ray only.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from remote.engines.ray.folder import ENDED, FAILED, LEFT_OUT, OVER, REFUSED, RUNS, STOPPED, Folder, Pool, Slot

FAILURES = 3
"""The number of failures after which a replica is still started again. The next failure ends it."""
LOOK_SECONDS = 1.0
SAME_NODE_SECONDS = 60.0
"""How long an actor waits until another actor of the same run on its node ends."""
LAST_BYTES = 4000
ADDRESS = re.compile(r"[\d.:a-f]+")


class RefusedError(Exception):
    """The reason why this replica can never work on its node."""


class Replica:
    """One replica of a run. A thread of the actor runs the replica, and the actor ends when the thread ends."""

    def __init__(self, jobs: str, name: str, mark: str) -> None:
        self._folder, self._name, self._mark = Folder(Path(jobs)), name, mark
        self._node_id, self._node = _here()
        self._slot = Slot(name)
        self._untold = ""
        threading.Thread(target=self._live, name="replica", daemon=True).start()

    def __repr__(self) -> str:
        """Return the name under which Ray's dashboard and logs show this actor."""
        return f"{self._node} {self._folder.run.name}.{self._name}"

    def untold(self) -> str:
        """Return why this replica was refused, if its node does not see the folder to which the reason belongs."""
        return self._untold

    def _live(self) -> None:
        try:
            self._until_ended()
        except RefusedError as error:
            self._end(LEFT_OUT, str(error))
        except Exception as error:
            self._end(FAILED, f"its actor failed: {type(error).__name__}: {error}")
        if not self._untold:  # otherwise the controller asks for the reason, and then removes the group
            _give_back()

    def _until_ended(self) -> None:
        pool = self._pool()
        self._slot = self._folder.slot(self._name)
        if self._slot.state in ENDED:
            return None
        if self._slot.state == RUNS:
            self._note_death()
        scratch = Path(pool.scratch) / f"roost-{os.getuid()}-{self._node}-{pool.run}"
        with _only_one_on_this_node(scratch):
            while self._slot.failures <= FAILURES:
                if self._folder.stop.exists():
                    return self._end(STOPPED, "")
                cause = self._attempt(pool, scratch)
                if not cause:
                    return self._end(OVER if self._folder.is_over else STOPPED, "")
                self._slot.failures += 1
                self._slot.cause = f"{cause} on {self._node}"
                print(f"{self._name} failed, {self._slot.failures} of {FAILURES}: {self._slot.cause}", flush=True)
        return self._end(FAILED, self._slot.cause)

    def _pool(self) -> Pool:
        if not self._folder.sees(self._mark):
            raise RefusedError(
                f"the node {self._node} does not see the {self._folder.root} of the host that submitted the run: the "
                "cluster's `workdir` must be on a file system that all nodes share"
            )
        pool = self._folder.pool()
        gpus = sorted(int(one) for one in _gpus() if one.isdecimal())
        if gpus != list(range(len(gpus))):
            raise RefusedError(
                f"Ray gave it the GPUs {', '.join(map(str, gpus))} of {self._node}, but a replica takes a whole node: "
                "`gpus_per_node` must be the number of the node's GPUs"
            )
        return pool

    def _note_death(self) -> None:
        """Note why the earlier actor ended without saying so: its process was killed, or its node is gone."""
        slot = self._slot
        if slot.node_id in _living_nodes():
            slot.failures += 1
            slot.cause = f"its actor's process on {slot.node} was killed (by the kernel if memory ran out)"
        else:
            slot.cause = f"the node {slot.node} was lost"  # not counted as a failure: spot nodes come and go
        print(f"{self._name} goes on: {slot.cause}", flush=True)

    def _attempt(self, pool: Pool, scratch: Path) -> str:
        """Run one attempt as its parent; return why the attempt failed, or "" if it did not fail."""
        slot = self._slot
        slot.attempt = self._folder.next_attempt(self._name)
        slot.state, slot.node, slot.node_id, slot.since = RUNS, self._node, self._node_id, time.time()
        self._folder.keep(slot)
        name = f"{self._name}.{slot.attempt}"
        print(f"{name} starts on {self._node}", flush=True)
        with (self._folder.root / f"{self._name}.log").open("ab") as log:
            began = log.tell()
            child = subprocess.Popen(
                self._command(pool, scratch, name), cwd=pool.payload, env=_environment(), stdin=subprocess.PIPE,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            code = self._await(child)
        print(f"{name} ended with {code}", flush=True)
        said = self._last_error(began)
        if code == REFUSED:
            raise RefusedError(said or "the replica was refused; see its log")
        if code == 0 and (self._folder.is_over or self._folder.stop.exists()):
            return ""
        return said or f"the replica ended with {code}"

    def _command(self, pool: Pool, scratch: Path, name: str) -> list[str]:
        argv = [pool.python, "-m", "remote", "replica", "--folder", str(self._folder.run), "--name", name]
        argv += ["--workdir", str(scratch), "--scratch", str(scratch), "--tied", "true", "--output", "log"]
        return argv

    def _await(self, child: subprocess.Popen[bytes]) -> int:
        told = False
        while True:
            try:
                return child.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                if not told and self._folder.stop.exists():
                    child.send_signal(signal.SIGUSR1)  # drain: end the requests in flight, publish finished chunks
                    told = True

    def _last_error(self, began: int) -> str:
        """Return the last error in the attempt's log, which begins at byte `began`; "" if there is no error."""
        with (self._folder.root / f"{self._name}.log").open("rb") as log:
            log.seek(max(began, log.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        errors = [line.partition("] ERROR ")[2].partition(": ")[2] for line in lines if "] ERROR " in line]
        return errors[-1].rstrip(".") if errors else ""

    def _end(self, state: str, cause: str) -> None:
        self._slot.state, self._slot.cause = state, cause or self._slot.cause
        self._slot.node, self._slot.since = self._node, time.time()
        print(f"{self._name} ended: {state}{f': {cause}' if cause else ''}", flush=True)
        if self._folder.sees(self._mark):
            self._folder.keep(self._slot)
        else:
            self._untold = cause


class _only_one_on_this_node:
    """A lock, because two replicas of a run on one node would end each other's servers."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = scratch.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise RefusedError(
                f"{scratch} on its node is a link or belongs to another user: set the cluster's `scratch` to another "
                "folder"
            )
        self._lock = (scratch / "actor.lock").open("ab")

    def __enter__(self) -> None:
        deadline = time.monotonic() + SAME_NODE_SECONDS
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > deadline:
                    raise RefusedError(
                        "its node already has a replica of this run: set `gpus_per_node` or `resources` to more than "
                        "half of what a node has"
                    ) from None
                time.sleep(LOOK_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._lock.close()


def _environment() -> dict[str, str]:
    """Return the node's environment without the variables that Ray sets for its own workers."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") and name not in ("OMP_NUM_THREADS", "PYTHONPATH")
    }


def _here() -> tuple[str, str]:
    """Return this node's id in Ray, and its name in Ray, or the machine's name if Ray has only an address."""
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    names: list[Any] = [node["NodeName"] for node in ray.nodes() if node["NodeID"] == node_id]
    name = str(names[0]) if names else ""
    plain = name if name and not ADDRESS.fullmatch(name) else socket.gethostname()
    return node_id, re.sub(r"[^A-Za-z0-9._-]", "-", plain)


def _living_nodes() -> set[str]:
    import ray

    return {str(node["NodeID"]) for node in ray.nodes() if node["Alive"]}


def _gpus() -> list[str]:
    import ray

    return [str(one) for one in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])]


def _give_back() -> None:
    """End this actor for good, and remove its placement group.

    Ray ends an actor whose group is removed, but may try for ever to start the actor again in the removed group, and
    then the actor's name stays taken.
    """
    import ray
    from ray.util.placement_group import get_current_placement_group, remove_placement_group

    group = get_current_placement_group()
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
    if group is not None:
        remove_placement_group(group)
