"""A cluster of the inventory: what its scheduler is asked for, and the host from which it is asked.

`clusters: {h100: {engine: slurm, login: login1, nodes: 8, workdir: /shared/roost, partition: gpu, …}}`. Keys that a
host knows too (`model`, `layers`, `python`, …) are the nodes'; on Slurm, every other key is an option of sbatch.
`{pool: {engine: ray, address: "http://head:8265", nodes: [2, 16], workdir: /shared/roost}}` is one of Ray.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from hosts.inventory.model import Host, Seconds, Text, as_text


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


def _as_options(given: object) -> object:
    """sbatch's options by their long names, if these are keys and values."""
    return _sbatch_options(given) if isinstance(given, dict) else given


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
    cpu: Annotated[dict[str, str], BeforeValidator(_as_options)] = Field(default_factory=dict)
    """Options of sbatch for jobs without GPUs (`inv prepare --cluster` and others), over those of the cluster."""
    options: dict[str, str] = Field(default_factory=dict)
    """Of sbatch, by their long names."""


def _both_bounds(value: object) -> object:
    """`8` as `[8, 8]`."""
    return [value, value] if isinstance(value, int) and not isinstance(value, bool) else value


class RayCluster(Cluster):
    """A cluster of Ray, whose nodes may come and go."""

    engine: Literal["ray"] = "ray"
    address: Text
    """Of Ray's job server, as the login host reaches it: `http://127.0.0.1:8265` if that is the head node."""
    nodes: Annotated[list[int], BeforeValidator(_both_bounds), Field(min_length=2, max_length=2)]
    """`[2, 16]`: nodes that must be there when a run begins, and replicas at once, one a node; `8` means `[8, 8]`."""
    resources: dict[str, float] = Field(default_factory=lambda: {"CPU": 1.0})
    """What a replica takes of its node besides `gpus_per_node` GPUs, by Ray's names."""
    join: Seconds = Field(default=900.0, ge=1)
    """With a lower bound of 0: how long Ray's autoscaler may take to start the first node."""
    ray_python: Text = "python3"
    """The Python on the head node in which Ray is installed; `python` is the nodes' own, with SGLang."""

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        parts = urlsplit(value if "//" in value else f"http://{value}")
        if parts.scheme == "ray":
            raise ValueError("write the job server's address (http://HEAD:8265), not that of Ray's client")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write the job server's address as in http://HEAD:8265")
        return parts.geturl().rstrip("/")

    @field_validator("nodes")
    @classmethod
    def _are_bounds(cls, value: list[int]) -> list[int]:
        if not 0 <= value[0] <= value[1] or value[1] < 1:
            raise ValueError("write the fewest and the most nodes, as in [2, 16]")
        return value

    @field_validator("resources")
    @classmethod
    def _without_gpus(cls, value: dict[str, float]) -> dict[str, float]:
        if "GPU" in value:
            raise ValueError("GPUs are given as `gpus_per_node`")
        return value

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one replica."""
        gpus = {"GPU": float(self.gpus_per_node)} if self.gpus_per_node else {}
        return {**gpus, **{name: amount for name, amount in self.resources.items() if amount > 0}}

    @model_validator(mode="after")
    def _takes_something(self) -> RayCluster:
        if not self.bundle:
            raise ValueError("a replica needs GPUs or some of a node's `resources`")
        return self


AnyCluster = SlurmCluster | RayCluster
ENGINES: dict[str, type[SlurmCluster] | type[RayCluster]] = {"slurm": SlurmCluster, "ray": RayCluster}


class _Engine(BaseModel):
    engine: Literal["slurm", "ray"]


CONNECTION = (
    "connection", "address", "user", "ssh_port", "identity_file", "ssh", "ssh_config", "known_hosts", "connect_timeout",
    "exec",
)  # fmt: skip
"""Settings of the login host that a cluster's host has too."""


def split(name: str, own: dict[str, Any]) -> tuple[AnyCluster, dict[str, Any]]:
    """A cluster, and the keys of its host; raises ValidationError for a wrong key or value."""
    kind = ENGINES[_Engine.model_validate(own).engine]
    of_cluster = {key: value for key, value in own.items() if key in kind.model_fields}
    of_host = {key: value for key, value in own.items() if key in Host.model_fields and key not in of_cluster}
    rest = {key: value for key, value in own.items() if key not in of_cluster and key not in of_host}
    if kind is SlurmCluster:
        rest = {"options": _sbatch_options(rest)}
    return kind.model_validate({**of_cluster, **rest, "name": name}), of_host


def _sbatch_options(given: dict[str, Any]) -> dict[str, str]:
    named = {key.replace("_", "-"): value for key, value in given.items()}
    return {key: "" if value is True else str(as_text(value)) for key, value in named.items() if value is not False}
