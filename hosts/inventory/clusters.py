"""A cluster of the inventory: what its scheduler is asked for, and the host from which it is asked.

`clusters: {h100: {engine: slurm, login: login1, nodes: 8, workdir: /shared/roost, partition: gpu, …}}`. Keys that a
host knows too (`model`, `layers`, `python`, …) are the nodes'; on Slurm, every other key is an option of sbatch.
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
    """What a cluster of any engine has."""

    model_config = ConfigDict(extra="forbid")

    name: str
    login: str = "local"
    """A host of the inventory that sees `workdir` and from which the scheduler is asked, or `local`."""
    gpus_per_node: int = Field(default=8, ge=0)
    workdir: str
    """A folder that login host and nodes share."""
    scratch: str | None = None
    """On each node's own disk (default: the node's temporary folder)."""
    chunk_tokens: int = Field(default=2_000_000, ge=1)
    """What a replica takes at once: some minutes of its work."""
    lease: Seconds = Field(default=120.0, ge=5)
    """A replica that was not heard of for so long has lost its chunks to the others."""
    serve_with: list[str] = Field(default_factory=list)
    """A command on the node that starts the servers, instead of Roost's own."""


class SlurmCluster(Cluster):
    """A cluster whose nodes Slurm gives."""

    engine: Literal["slurm"] = "slurm"
    nodes: int = Field(ge=1)
    """Replicas at once, one a node."""
    drain: Seconds = Field(default=300.0, ge=1)
    """So long before its time limit a replica stops taking work."""
    prolog: list[str] = Field(default_factory=list)
    """Lines of shell before the replica, such as `module load cuda`."""
    container: Container | None = None
    options: dict[str, str] = Field(default_factory=dict)
    """Of sbatch, by their long names."""


AnyCluster = SlurmCluster
ENGINES: dict[str, type[AnyCluster]] = {"slurm": SlurmCluster}


CONNECTION = (
    "connection", "address", "user", "ssh_port", "identity_file", "ssh", "ssh_config", "known_hosts", "connect_timeout",
    "exec",
)  # fmt: skip
"""Settings of the login host that a cluster's host has too."""


def split(name: str, own: dict[str, Any]) -> tuple[AnyCluster, dict[str, Any]]:
    """A cluster, and the keys of its host; raises ValidationError for a wrong key or value."""
    kind = ENGINES.get(str(own.get("engine")), SlurmCluster)  # another engine's name is refused there
    of_cluster = {key: value for key, value in own.items() if key in kind.model_fields}
    of_host = {key: value for key, value in own.items() if key in Host.model_fields and key not in of_cluster}
    rest = {key: value for key, value in own.items() if key not in of_cluster and key not in of_host}
    if kind is SlurmCluster:
        rest = {"options": _sbatch_options(rest)}
    return kind.model_validate({"engine": None, **of_cluster, **rest, "name": name}), of_host


def _sbatch_options(given: dict[str, Any]) -> dict[str, str]:
    named = {key.replace("_", "-"): value for key, value in given.items()}
    return {key: "" if value is True else str(as_text(value)) for key, value in named.items() if value is not False}
