"""What a host has and lacks (`inv doctor`): plain facts; what they mean is judged on the laptop.

A fact that could not be had is None or empty, and `problem` says in one sentence why where that matters.
"""

from __future__ import annotations

from pydantic import Field

from remote.shared.messages.attach import FamilyFile, Installation
from remote.shared.messages.envelope import Message
from remote.shared.messages.server import Attach, Needs, ServerReport


class FactsRequest(Message):
    """Where to look; nothing is changed."""

    model: str | None = None
    """The model's path on the host; None looks at no model."""
    dump_dir: str = "/dev/shm/sglang_hs"  # noqa: S108
    attach: Attach = "auto"
    env: dict[str, str] = Field(default_factory=dict)
    """The environment that servers on this host are started with, on top of the login's."""
    needs: list[Needs] = Field(default_factory=list)
    """What the inventory's servers take of this host: their ports are looked at."""
    ask_servers: bool = False
    """Ask this workdir's servers for a generation each."""


class MachineFacts(Message):
    """The machine, who works on it, and what time it has."""

    hostname: str
    kernel: str
    user: str
    root: bool
    container: str = ""
    """`docker`, `kubernetes`, …; empty outside a container, as far as that shows."""
    cpu: str
    cores: int
    cpu_aes: bool
    """AES instructions: aes128-gcm is then the faster cipher for bulk."""
    memory_bytes: int
    memory_available_bytes: int
    time_at: float
    zone: str


class GpuProcess(Message):
    """Somebody's use of a GPU."""

    pid: int
    used_bytes: int
    visible: bool
    """False where the pid means nothing here: it belongs to another container or to the machine outside."""
    command: str = ""
    user: str = ""
    ours: str = ""
    """The server of this workdir that it belongs to; empty for anyone else's."""


class GpuFact(Message):
    """One GPU."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    processes: list[GpuProcess] = Field(default_factory=list)


class GpuLink(Message):
    """How two GPUs reach each other."""

    first: int
    second: int
    way: str
    """As `nvidia-smi topo -m` names it: NV18, PIX, PXB, PHB, NODE, SYS."""
    p2p: str = ""
    """As `nvidia-smi topo -p2p r` names it: OK, NS, CNS, …; empty where it does not tell."""


class GpuFacts(Message):
    """The GPUs, or why there are none to see."""

    gpus: list[GpuFact] = Field(default_factory=list)
    links: list[GpuLink] = Field(default_factory=list)
    driver: str = ""
    cuda: str = ""
    """Newest CUDA that the driver supports."""
    problem: str = ""


class PythonFacts(Message):
    """The Python that the inventory names, and what is installed in it (found without importing any of it)."""

    executable: str
    version: str
    packages: dict[str, str | None]
    """Version by package; None where it is missing."""
    torch_cuda: str = ""
    """CUDA that torch was built for; empty for a CPU build."""


class CaptureFacts(Message):
    """Whether capture goes into this SGLang."""

    installation: Installation | None = None
    supported: bool = False
    way: str = ""
    reason: str = ""
    files: list[FamilyFile] = Field(default_factory=list)
    problem: str = ""
    remedy: str = ""


class ModelFacts(Message):
    """The model's folder."""

    path: str
    architecture: str = ""
    captured: bool = False
    """Capture serves this architecture."""
    layers: int = 0
    hidden_size: int = 0
    context_length: int = 0
    weight_bytes: int = 0
    problem: str = ""
    remedy: str = ""


class SpaceFacts(Message):
    """A file system, seen through the folder that matters."""

    path: str
    """The deepest part of the asked-for folder that exists."""
    kind: str = ""
    """Its type, as `ext4` or `tmpfs`; empty where the mount table does not tell."""
    total_bytes: int
    free_bytes: int
    """What this user may still write."""
    free_inodes: int | None = None
    """None where the file system does not count them."""
    writable: bool
    own_bytes: int = 0
    """Bytes already below the asked-for folder."""


class PortFact(Message):
    """A port that the inventory gives to a server, and that somebody listens on."""

    port: int
    server: str
    """Whose it is by the inventory."""
    holder: str
    """Who listens, in words; empty where this user cannot see it."""
    ours: bool
    """It is that very server of this workdir."""


class LimitFacts(Message):
    """Limits that a fleet runs into."""

    open_files: int
    """`ulimit -n` of this login, which servers inherit; -1 is unlimited."""
    open_files_hard: int
    processes: int
    max_startups: str = ""
    """sshd's MaxStartups; empty where its configuration cannot be read, the default (10:30:100) where it is silent."""
    max_sessions: int | None = None


class LoginFacts(Message):
    """What systemd-logind does at a user's last logout."""

    kill_user_processes: bool
    """It ends what the login started, detached or not."""
    remove_ipc: bool
    """It removes the user's files in /dev/shm, the dump directory among them."""
    lingers: bool
    """The user's manager stays, so that neither touches what runs in it."""


class ToolFacts(Message):
    """Programs beside Python; empty where they are missing."""

    rsync: str = ""
    ssh: str = ""


class Facts(Message):
    """Everything that `inv doctor` asks a host."""

    machine: MachineFacts
    gpu: GpuFacts
    python: PythonFacts
    capture: CaptureFacts
    model: ModelFacts | None
    workdir: SpaceFacts
    ram_disk: SpaceFacts
    other_people: list[str] = Field(default_factory=list)
    """Users, root and this one aside, who have a process on the host."""
    ports: list[PortFact] = Field(default_factory=list)
    limits: LimitFacts
    tools: ToolFacts
    logins: LoginFacts | None = None
    """None without systemd."""
    servers: list[ServerReport] = Field(default_factory=list)
    """This workdir's servers; each that is ready was asked for a generation."""
