"""The controller's calls to Ray: connect, nodes, placement groups, actors. Under Ray's Python, on the head node.

Groups and actors are detached, and found again by their names, so that they outlive the controller.
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
    """The run cannot be done on this cluster as it was asked for."""


@dataclass(frozen=True)
class Group:
    """A placement group of one replica."""

    state: str
    """Ray's word: PENDING, CREATED, RESCHEDULING."""
    node_id: str
    """The node on which Ray has placed it, or has last."""

    @property
    def is_placed(self) -> bool:
        """Whether it has a node."""
        return self.state == "CREATED"


@dataclass(frozen=True)
class Cluster:
    """Ray, as one run sees it."""

    pool: Pool

    def connect(self) -> None:
        """Become a driver; raises RefusedError if this Python has no Ray, or another one than the cluster."""
        try:
            import ray
        except ImportError as error:
            raise RefusedError(
                f"{sys.executable} on the head node has no Ray: name one that has it as `ray_python`"
            ) from error
        try:
            ray.init(address="auto", namespace=self.pool.namespace, log_to_driver=False, logging_level="ERROR")
        except RuntimeError as error:
            if "ersion mismatch" not in str(error):
                raise
            raise RefusedError(
                f"{sys.executable} on the head node has Ray {ray.__version__} for Python {sys.version.split()[0]}, and "
                "the cluster runs another version: name the Python with which it was started as `ray_python`"
            ) from error
        for module in (actor_module, folder_module):
            ray.cloudpickle.register_pickle_by_value(module)

    def nodes(self) -> list[dict[str, float]]:
        """What each living node has in all."""
        import ray

        return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]

    def groups(self) -> dict[str, Group]:
        """The run's placement groups, by their replicas' names."""
        from ray.util.placement_group import placement_group_table

        prefix = self.pool.group("")
        table: list[dict[str, Any]] = [one for one in placement_group_table().values() if one["state"] != "REMOVED"]
        return {
            one["name"].removeprefix(prefix): Group(one["state"], next(iter(one["bundles_to_node_id"].values()), ""))
            for one in table
            if one["name"].startswith(prefix)
        }

    def ask_for(self, name: str) -> None:
        """Ask for a replica's placement group; it may wait for a node for long."""
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
        """Whether a replica has an actor that lives, starts, or is to be started again."""
        import ray

        try:
            ray.get_actor(name)
        except ValueError:
            return False
        return True

    def put(self, name: str, *arguments: str) -> None:
        """Put a replica's actor into its placement group, unless it has one."""
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
        """What an actor has to say that cannot write it into the run's folder."""
        import ray

        try:
            return str(ray.get(ray.get_actor(name).untold.remote(), timeout=ANSWER_SECONDS))
        except (ValueError, ray.exceptions.RayError):  # it is gone, or has not started yet
            return ""
