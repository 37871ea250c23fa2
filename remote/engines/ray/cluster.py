"""The controller's calls to Ray: connect, nodes, placement groups, actors. Under Ray's Python, on the head node.

Groups and actors are detached, so they outlive the controller; the next controller finds them by their names.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from remote.engines.ray import actor as actor_module
from remote.engines.ray import folder as folder_module
from remote.engines.ray.actor import Replica
from remote.engines.ray.folder import Pool

STRATEGY = "STRICT_PACK"
ANSWER_SECONDS = 2.0


class RefusedError(Exception):
    """The reason why the run cannot be done on this cluster with these settings."""


@dataclass(frozen=True)
class Group:
    """A placement group of one replica."""

    state: str
    """Ray's own name of the state: PENDING, CREATED, RESCHEDULING."""
    node_id: str
    """The node on which Ray has placed the group, now or most recently."""

    @property
    def is_placed(self) -> bool:
        """Return whether the group has a node."""
        return self.state == "CREATED"


@dataclass(frozen=True)
class Cluster:
    """Ray's nodes, groups and actors of one run."""

    pool: Pool

    def connect(self) -> None:
        """Become a driver; raise RefusedError if this Python has no Ray, or another version than the cluster."""
        try:
            import ray
        except ImportError as error:
            raise RefusedError(
                f"{sys.executable} on the head node has no Ray: set `ray_python` to a Python that has it"
            ) from error
        try:
            ray.init(address="auto", namespace=self.pool.namespace, log_to_driver=False, logging_level="ERROR")
        except RuntimeError as error:
            if "ersion mismatch" not in str(error):
                raise
            raise RefusedError(
                f"{sys.executable} on the head node has Ray {ray.__version__} for Python {sys.version.split()[0]}, but "
                "the cluster runs another version: set `ray_python` to the Python with which the cluster was started"
            ) from error
        for module in (actor_module, folder_module):
            ray.cloudpickle.register_pickle_by_value(module)

    def nodes(self) -> list[dict[str, float]]:
        """Return the total resources of each living node."""
        import ray

        return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]

    def groups(self) -> dict[str, Group]:
        """Return the run's placement groups, by the names of their replicas."""
        from ray.util.placement_group import placement_group_table

        prefix = self.pool.group("")
        table: list[dict[str, Any]] = [one for one in placement_group_table().values() if one["state"] != "REMOVED"]
        return {
            one["name"].removeprefix(prefix): Group(one["state"], next(iter(one["bundles_to_node_id"].values()), ""))
            for one in table
            if one["name"].startswith(prefix)
        }

    def ask_for(self, name: str) -> None:
        """Ask for a replica's placement group, which may wait long for a node."""
        from ray.util.placement_group import placement_group

        placement_group([self.pool.bundle], strategy=STRATEGY, name=self.pool.group(name), lifetime="detached")

    def let_go(self, name: str) -> None:
        """End a replica's actor for good, and remove its placement group."""
        import ray
        from ray.util import get_placement_group
        from ray.util.placement_group import remove_placement_group

        with suppress(ValueError):
            ray.kill(ray.get_actor(name), no_restart=True)
        with suppress(ValueError):
            remove_placement_group(get_placement_group(self.pool.group(name)))

    def has_actor(self, name: str) -> bool:
        """Return whether a replica has an actor that lives, starts, or will be started again."""
        import ray

        try:
            ray.get_actor(name)
        except ValueError:
            return False
        return True

    def put(self, name: str, *arguments: str) -> None:
        """Start a replica's actor in its placement group, unless the replica has an actor."""
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
        ).remote(*arguments)

    def untold(self, name: str) -> str:
        """Return why an actor that cannot write to the run's folder was refused; "" if it was not refused."""
        import ray

        try:
            return str(ray.get(ray.get_actor(name).untold.remote(), timeout=ANSWER_SECONDS))
        except (ValueError, ray.exceptions.RayError):  # the actor is gone, or has not started yet
            return ""
