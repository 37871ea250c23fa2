"""What `inv doctor` asks of a host, and what the host is. A fact that cannot be had stays None or empty."""

from __future__ import annotations

from pydantic import Field

from remote.messages.attach import Installation
from remote.messages.envelope import Message


class FactsRequest(Message):
    """Which paths and ports matter; changes nothing."""

    model: str | None = None
    dump_dir: str = "/dev/shm/sglang_hs"  # noqa: S108
    ports: list[int] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    """The environment that servers on this host are started with."""


class GpuFact(Message):
    """One GPU."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    processes: dict[int, int] = Field(default_factory=dict)
    """pid → bytes; inside a container the pids may be the outer ones."""


class ModelFact(Message):
    """The model folder."""

    path: str
    problem: str = ""
    """Why it cannot be served; empty where its config and weight files are there."""
    architecture: str = ""
    layers: int | None = None
    hidden_size: int | None = None


class SpaceFact(Message):
    """A file system."""

    path: str
    kind: str = ""
    """`tmpfs`, `ext4` …; empty where it cannot be told."""
    total_bytes: int
    free_bytes: int


class Facts(Message):
    """One host as it is now."""

    hostname: str
    kernel: str
    in_container: bool
    user: str
    python: str
    python_version: str
    packages: dict[str, str] = Field(default_factory=dict)
    """Versions of sglang, torch, transformers and what capture and extraction import; a missing one is left out."""
    sglang: Installation | None = None
    sglang_problem: str = ""
    gpus: list[GpuFact] = Field(default_factory=list)
    driver: str = ""
    cuda: str = ""
    """The newest CUDA that the driver serves."""
    topology: list[str] = Field(default_factory=list)
    """How GPU pairs are linked, as nvidia-smi names it (`NV18`, `PIX`, `SYS`), each kind once."""
    model: ModelFact | None = None
    disk: SpaceFact
    ram_disk: SpaceFact | None = None
    memory_total_bytes: int
    memory_available_bytes: int
    cores: int
    cpu_has_aes: bool
    open_files: int
    """Soft limit of file descriptors; -1 is unlimited."""
    max_startups: str = ""
    """Of sshd, where its configuration can be read."""
    tools: dict[str, str] = Field(default_factory=dict)
    """rsync and ssh with their version lines."""
    taken_ports: dict[int, str] = Field(default_factory=dict)
    """Port → who listens."""
    clock_at: float
