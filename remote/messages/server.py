"""A server as the laptop orders it and as the host remembers it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.messages.envelope import Message

Attach = Literal["auto", "plugin", "patch"]
FinalNorm = Literal["pre", "post"]


class CaptureSpec(Message):
    """What the server writes for every request that carries a record's id."""

    layers: list[int]
    """Auxiliary layers as boundaries: k = the residual stream after k blocks. Boundary n is always added last."""
    final: FinalNorm = "pre"
    """The last slot: the state before (`pre`) or after (`post`) the model's last norm."""
    dump_dir: str = "/dev/shm/sglang_hs"  # noqa: S108
    high_water_bytes: int = 64 << 30
    """The dump directory never holds more; at the mark the forward pass waits."""
    pinned_bytes: int = 4 << 30
    """Upper bound of pinned host memory for the device-to-host ring, a rank."""
    attach: Attach = "auto"


class ServerSpec(Message):
    """Everything needed to start one server on one host; the inventory resolved, nothing left to look up."""

    name: str = "main"
    mode: str = "extract"
    model: str
    port: int = 8000
    tp: int = 1
    gpus: list[int] = Field(default_factory=list)
    """CUDA device ordinals for this server; empty on a host without GPUs."""
    flags: list[str] = Field(default_factory=list)
    """Further arguments of `sglang.launch_server`, in order."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment on top of the login's; values never appear in an argv or a log."""
    capture: CaptureSpec | None = None
    """Set in modes that extract; None serves plainly."""
    ready_timeout_seconds: float = 1800.0
    restart: bool = False
    """Start again after a crash, with capped backoff."""
    log_dir: str | None = None
    """Where logs go instead of the server's own folder."""
    nodes: list[str] = Field(default_factory=list)
    """Addresses of all hosts of a server that spans hosts, rank order; empty for one host."""
    node_rank: int = 0
    dist_init_addr: str | None = None


ServerStatus = Literal["starting", "ready", "failed", "stopped"]


class ProcessRef(Message):
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    created_at: float
    """`psutil.Process.create_time()`."""
    group: int
    session: int


class CaptureState(Message):
    """Capture as it is active inside a running server."""

    attach: Literal["plugin", "patch"]
    payload: str
    """Digest of the payload that the capture code was loaded from."""
    version: str
    boundaries: list[int]
    """The slots of a record, in order; the last one is n."""
    final: FinalNorm
    dump_dir: str


class ServerState(Message):
    """`servers/<name>/state.json`: written by the supervisor, whole, at every change."""

    name: str
    mode: str
    status: ServerStatus
    port: int
    model: str
    command: list[str]
    log: str
    start: int = 1
    """Counts starts of this server name on this host; the log's number."""
    supervisor: ProcessRef | None = None
    server: ProcessRef | None = None
    capture: CaptureState | None = None
    sglang: str = ""
    spec: ServerSpec
    started_at: float = 0.0
    ready_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    cause: str = ""
    """One sentence on why it failed."""
