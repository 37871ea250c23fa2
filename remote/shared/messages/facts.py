"""The facts about a host that `inv doctor` asks for; the laptop judges what they mean.

An unknown fact is None or empty. If a person should know why, `problem` says so in one sentence.
"""

from __future__ import annotations

from pydantic import Field

from remote.shared.messages.attach import FamilyFile, Installation
from remote.shared.messages.envelope import Message
from remote.shared.messages.server import Attach, Needs, ServerReport


class FactsRequest(Message):
    """Ask for the facts of a host; changes nothing."""

    model: str | None = None
    """The model's path on the host; None checks no model."""
    dump_dir: str = "/dev/shm/sglang_hs"  # noqa: S108
    attach: Attach = "auto"
    env: dict[str, str] = Field(default_factory=dict)
    """The environment of servers on this host, in addition to the login's."""
    needs: list[Needs] = Field(default_factory=list)
    """The needs of the inventory's servers on this host, whose ports are checked."""
    ask_servers: bool = False
    """Ask each of this workdir's servers for a generation."""


class MachineFacts(Message):
    """The machine, its user and its clock."""

    hostname: str
    kernel: str
    user: str
    root: bool
    container: str = ""
    """`docker`, `kubernetes`, …; empty if no container is recognised."""
    cpu: str
    cores: int
    cpu_aes: bool
    """Whether the CPU has AES instructions, which make aes128-gcm the faster cipher for large transfers."""
    memory_bytes: int
    memory_available_bytes: int
    time_at: float
    zone: str


class GpuProcess(Message):
    """A process that uses a GPU."""

    pid: int
    used_bytes: int
    visible: bool
    """False if the pid means nothing here, because it belongs to another container or to the outer machine."""
    command: str = ""
    user: str = ""
    ours: str = ""
    """The server of this workdir that the process belongs to; empty for any other process."""


class GpuFact(Message):
    """One GPU."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    processes: list[GpuProcess] = Field(default_factory=list)


class GpuLink(Message):
    """The connection between two GPUs."""

    first: int
    second: int
    way: str
    """The name that `nvidia-smi topo -m` gives: NV18, PIX, PXB, PHB, NODE, SYS."""
    p2p: str = ""
    """The name that `nvidia-smi topo -p2p r` gives: OK, NS, CNS, …; empty if it gives none."""


class GpuFacts(Message):
    """The GPUs, or why none is visible."""

    gpus: list[GpuFact] = Field(default_factory=list)
    links: list[GpuLink] = Field(default_factory=list)
    driver: str = ""
    cuda: str = ""
    """The newest CUDA version that the driver supports."""
    problem: str = ""


class PythonFacts(Message):
    """The Python that the inventory names, and its installed packages (found without importing them)."""

    executable: str
    version: str
    packages: dict[str, str | None]
    """The version of each package; None for a missing package."""
    torch_cuda: str = ""
    """The CUDA version that torch was built for; empty for a CPU build."""


class CaptureFacts(Message):
    """Whether capture can be attached to this SGLang."""

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
    """Whether capture supports the model's architecture."""
    layers: int = 0
    hidden_size: int = 0
    context_length: int = 0
    weight_bytes: int = 0
    problem: str = ""
    remedy: str = ""


class SpaceFacts(Message):
    """The file system of one folder."""

    path: str
    """The deepest existing parent of the requested folder."""
    kind: str = ""
    """The type, such as `ext4` or `tmpfs`; empty if the mount table does not tell."""
    total_bytes: int
    free_bytes: int
    """The bytes that this user may still write."""
    free_inodes: int | None = None
    """None if the file system does not count inodes."""
    writable: bool
    own_bytes: int = 0
    """The bytes below the requested folder."""


class PortFact(Message):
    """A port that the inventory gives to a server and that some process listens on."""

    port: int
    server: str
    """The server that the inventory gives the port to."""
    holder: str
    """The listening process in words; empty if this user cannot see it."""
    ours: bool
    """Whether the listener is that server of this workdir."""


class LimitFacts(Message):
    """Limits of the login and of sshd."""

    open_files: int
    """`ulimit -n` of this login, which servers inherit; -1 means unlimited."""
    open_files_hard: int
    processes: int
    max_startups: str = ""
    """sshd's MaxStartups, or the default (10:30:100) if sshd's configuration has none; empty if it is unreadable."""
    max_sessions: int | None = None


class LoginFacts(Message):
    """What systemd-logind does at a user's last logout."""

    kill_user_processes: bool
    """Whether it ends the processes of the login, even detached processes."""
    remove_ipc: bool
    """Whether it removes the user's files in /dev/shm, including the dump directory."""
    lingers: bool
    """Whether the user's manager stays, which protects processes and files from both."""


class ToolFacts(Message):
    """The versions of other programs; empty for a missing program."""

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
    """The users, except root and this user, who have a process on the host."""
    ports: list[PortFact] = Field(default_factory=list)
    limits: LimitFacts
    tools: ToolFacts
    logins: LoginFacts | None = None
    """The settings of systemd-logind; None without systemd."""
    servers: list[ServerReport] = Field(default_factory=list)
    """This workdir's servers; each ready server was asked for a generation."""
