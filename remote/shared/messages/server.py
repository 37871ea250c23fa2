"""A server: the laptop's order, the host's record, and the requests and answers of the verbs for servers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from remote.shared.messages.envelope import Message

NODES_TOKEN = "ROOST_NODES_TOKEN"  # noqa: S105
"""The variable with the token that the supervisors of one server share; it is redacted wherever a spec is written."""

Attach = Literal["auto", "plugin", "patch"]
FinalNorm = Literal["pre", "post"]
GpuId = int | str
"""An ordinal of `nvidia-smi`, or a UUID of `nvidia-smi -L`: `GPU-…`, or `MIG-…` for a slice."""


class CaptureSpec(Message):
    """What the server captures for every request with a record's id."""

    layers: list[int]
    """Auxiliary layers as boundaries: k is the residual stream after k blocks. Boundary n is always added last."""
    final: FinalNorm = "pre"
    """Whether the last slot is the state before (`pre`) or after (`post`) the model's last norm."""
    dump_dir: str = "/dev/shm/sglang_hs"  # noqa: S108
    high_water_bytes: int = 64 << 30
    """The largest size of the dump directory; at this mark, the forward pass waits."""
    pinned_bytes: int = 4 << 30
    """The largest amount of pinned host memory for each rank's device-to-host ring."""
    attach: Attach = "auto"


class ServerSpec(Message):
    """Everything needed to start one server on one host, fully resolved from the inventory."""

    name: str = "main"
    mode: str = "extract"
    model: str
    port: int = 8000
    tp: int = 1
    gpus: list[GpuId] = Field(default_factory=list)
    """The GPUs of this server; empty on a host without GPUs."""
    flags: list[str] = Field(default_factory=list)
    """Further arguments for `sglang.launch_server`, in order."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment in addition to the login's; values never appear in an argv or a log."""
    capture: CaptureSpec | None = None
    """Set in modes that extract; None for a server without capture."""
    secrets: list[str] = Field(default_factory=list)
    """The keys of `env` whose values are never shown or written."""
    ready_timeout_seconds: float = 1800.0
    restart: bool = False
    """Start the server again after a crash, with a capped backoff."""
    log_dir: str | None = None
    """The folder for logs; None means the server's own folder."""
    nodes: list[str] = Field(default_factory=list)
    """The addresses of all hosts of a server that spans hosts, in rank order; empty for one host."""
    node_rank: int = 0
    dist_init_addr: str | None = None


ServerStatus = Literal["starting", "ready", "failed", "stopped"]


class ProcessRef(Message):
    """A process, with the facts that distinguish it from a later process with the same pid."""

    pid: int
    created_at: float
    """`psutil.Process.create_time()`, which changes when the host's clock is set."""
    start: str = ""
    """The boot id and the clock ticks from boot to the process's start, which never change; "" if unknown."""
    group: int
    session: int


class CaptureState(Message):
    """The capture that is active in a running server."""

    attach: Literal["plugin", "patch"]
    payload: str
    """The digest of the payload that the capture code was loaded from."""
    version: str
    boundaries: list[int]
    """The slots of a record, in order; the last one is n."""
    final: FinalNorm
    dump_dir: str


class ServerState(Message):
    """`servers/<name>/state.json`, which the supervisor rewrites at every change."""

    name: str
    mode: str
    status: ServerStatus
    port: int
    model: str
    command: list[str]
    log: str
    start: int = 1
    """The number of this start among all starts of this server on this host; also the log's number."""
    mark: str = ""
    """The value of `ROOST_SERVER` in the environment of every process of this start."""
    supervisor: ProcessRef | None = None
    server: ProcessRef | None = None
    authorization: str = ""
    """The file with the HTTP header that every request must carry; only the server's user can read it."""
    capture: CaptureState | None = None
    sglang: str = ""
    weights: str = ""
    """The digest of the model's files (`remote.model_digest`) that this start loaded; "" before it is ready."""
    canary: str = ""
    """A sentence on how exactly the canary was captured before the server counted as ready."""
    spec: ServerSpec
    started_at: float = 0.0
    ready_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    cause: str = ""
    """A sentence on why the server failed."""
    trouble: str = ""
    """A sentence, with its time, on a fault that was repaired while the server ran."""
    restarts: int = 0
    """The number of restarts after crashes since `serve`."""
    restart_at: float | None = None
    """When the supervisor will start the server again; None if it will not."""


class ServeRequest(Message):
    """Start these servers on this host and wait until each is ready."""

    servers: list[ServerSpec]
    replace: bool = False
    """First stop this workdir's server of the same name if it runs with another command."""
    restart: bool = False
    """First stop this workdir's server of the same name in any case."""
    dry_run: bool = False
    wait_for_lock: bool = False
    """Wait for another operator's command to end instead of refusing."""


class PlannedStart(Message):
    """The exact start that would run; secrets in the environment are shown as `***`."""

    name: str
    command: list[str]
    env: dict[str, str]
    """The variables that are set in addition to the login's environment."""
    log: str
    steps: list[str] = Field(default_factory=list)
    """A sentence for each step before the start."""


class ServeResult(Message):
    """The ready servers; with `dry_run` only `planned` is filled."""

    servers: list[ServerState] = Field(default_factory=list)
    planned: list[PlannedStart] = Field(default_factory=list)


class ServersRequest(Message):
    """Ask for this workdir's recorded servers; changes nothing."""

    names: list[str] = Field(default_factory=list)
    """The servers' names; empty for all."""
    ask: bool = False
    """Ask each ready server for a generation, and report a server that gives none within seconds."""


class ServerReport(Message):
    """A server's record, compared with the processes that really run."""

    state: ServerState
    alive: bool
    """Whether the recorded process lives (same pid and start, not a zombie)."""
    supervised: bool
    """Whether the supervisor lives."""
    problem: str = ""
    """A sentence if the record is wrong, or if a fault was repaired while the server ran."""
    remedy: str = ""
    """What to type about the problem."""


class ServersResult(Message):
    """The servers of this workdir, sorted by name."""

    servers: list[ServerReport]


class ProcessRow(Message):
    """A process as `inv stop` and `inv free` show it before they end it."""

    pid: int
    user: str
    age_seconds: float
    gpu_bytes: int | None = None
    """GPU memory that the driver charges to the process; None if no driver tells."""
    command: str
    holds: list[str] = Field(default_factory=list)
    """Why the process is shown: `port 8000`, `/dev/nvidia0`, `dump directory …`, `SGLang server`."""
    owner: str = ""
    """The Roost server that the process belongs to, as `NAME in WORKDIR`; empty for any other process."""


class Needs(Message):
    """What a server of the inventory needs of a host, so that processes holding it can be named."""

    server: str
    port: int
    gpus: list[GpuId] = Field(default_factory=list)
    dump_dir: str | None = None


class StopRequest(Message):
    """Stop this workdir's servers; with `force`, also end other processes in their way."""

    names: list[str] = Field(default_factory=list)
    """The servers' names; if empty, all servers."""
    needs: list[Needs] = Field(default_factory=list)
    """The needs of the inventory's servers on this host, in addition to the needs of the recorded servers."""
    everything: bool = False
    """Also list SGLang servers that hold none of these (`inv free`)."""
    force: bool = False
    """End exactly the processes that would be listed in `others`."""
    dry_run: bool = False
    grace_seconds: float = 30.0
    """The time between SIGTERM and SIGKILL."""
    wait_for_lock: bool = False


class StopResult(Message):
    """What was stopped (with `dry_run`: would be stopped) and what remains."""

    stopped: list[str] = Field(default_factory=list)
    """The names of this workdir's servers that were stopped."""
    processes: list[ProcessRow] = Field(default_factory=list)
    """The processes of those servers."""
    others: list[ProcessRow] = Field(default_factory=list)
    """Other processes in the way, which only `force` ends."""
    forced: bool = False
    """Whether `others` were ended."""
    remaining: list[str] = Field(default_factory=list)
    """A sentence, with the owner, for each thing that is still there after the deadline."""
    notes: list[str] = Field(default_factory=list)
    """Sentences that a person should know but need not act on (a zombie that holds nothing)."""
    freed: list[str] = Field(default_factory=list)
    """A phrase for each emptied dump directory and for the removed shared memory."""


class CanaryRequest(Message):
    """Compare a canary's dump with its hook's file; sent by the supervisor on the same host."""

    dumps: list[str]
    """The dump, or one dump for every pipeline stage that has slots."""
    hooks: list[str]


class CanaryResult(Message):
    """The comparison, if every slot equals its boundary."""

    slots: int
    largest_error: float
    """The largest relative difference of a row."""


class AddressRequest(Message):
    """Ask for the address of a network interface, for the rendezvous of a server over several hosts."""

    interface: str


class AddressResult(Message):
    """A private address, which is not reachable from the internet."""

    address: str


class SuperviseRequest(Message):
    """Become the supervisor of the server whose `state.json` says `starting`; sent by `serve` on the same host."""

    name: str
    env: dict[str, str]
    """The server's whole environment with secrets; it travels through a pipe and is never written to a file."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The content of the operator's own `--config` file."""
    closes_admin: bool = False
    """Whether the endpoints that change a running server refuse every request."""
