"""A cluster of the inventory: what its scheduler is asked for, and the host from which it is asked.

`clusters: {h100: {engine: slurm, login: login1, nodes: 8, workdir: /shared/roost, partition: gpu, …}}`. Keys that a
host knows too (`model`, `layers`, `python`, …) are the nodes'; every other key is an option of sbatch.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hosts.inventory.model import Host, Seconds, as_text


class Container(BaseModel):
    """An image in which the replicas run. Neither has been tried on a real cluster."""

    model_config = ConfigDict(extra="forbid")

    image: str
    kind: Literal["pyxis", "apptainer"] = "pyxis"


class Cluster(BaseModel):
    """One cluster."""

    model_config = ConfigDict(extra="forbid")

    name: str
    engine: Literal["slurm"]
    login: str = "local"
    """A host of the inventory with sbatch, or `local`."""
    nodes: int = Field(ge=1)
    """Replicas at once, one a node."""
    gpus_per_node: int = Field(default=8, ge=0)
    workdir: str
    """A folder that login host and nodes share."""
    scratch: str | None = None
    """On each node's own disk (default: Slurm's or the node's temporary folder)."""
    drain: Seconds = Field(default=300.0, ge=1)
    """So long before its time limit a replica stops taking work."""
    chunk_tokens: int = Field(default=2_000_000, ge=1)
    """What a replica takes at once: some minutes of its work."""
    lease: Seconds = Field(default=120.0, ge=5)
    """A replica that was not heard of for so long has lost its chunks to the others."""
    prolog: list[str] = Field(default_factory=list)
    """Lines of shell before the replica, such as `module load cuda`."""
    container: Container | None = None
    serve_with: list[str] = Field(default_factory=list)
    """A command on the node that starts the servers, instead of Roost's own."""
    options: dict[str, str] = Field(default_factory=dict)
    """Of sbatch, by their long names."""


CONNECTION = (
    "connection", "address", "user", "ssh_port", "identity_file", "ssh", "ssh_config", "known_hosts", "connect_timeout",
    "exec",
)  # fmt: skip
"""Settings of the login host that a cluster's host has too."""


def split(name: str, own: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A cluster's keys as those of `Cluster` and those of its host."""
    of_cluster = {key: value for key, value in own.items() if key in Cluster.model_fields}
    of_host = {key: value for key, value in own.items() if key in Host.model_fields and key not in of_cluster}
    rest = {key.replace("_", "-"): value for key, value in own.items() if key not in of_cluster and key not in of_host}
    options = {key: "" if value is True else str(as_text(value)) for key, value in rest.items() if value is not False}
    return {**of_cluster, "name": name, "options": options}, of_host
