"""A server as the laptop orders it and as the host remembers it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from remote.shared.messages.envelope import Message

NODES_TOKEN = "ROOST_NODES_TOKEN"  # noqa: S105
"""The variable by which the supervisors of one server know each other; it is redacted wherever a spec is written."""

Attach = Literal["auto", "plugin", "patch"]
FinalNorm = Literal["pre", "post"]
GpuId = int | str
"""An ordinal as `nvidia-smi` counts, or a UUID as `nvidia-smi -L` shows it: `GPU-…`, or `MIG-…` for a slice."""


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
    gpus: list[GpuId] = Field(default_factory=list)
    """The GPUs of this server; empty on a host without GPUs."""
    flags: list[str] = Field(default_factory=list)
    """Further arguments of `sglang.launch_server`, in order."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment on top of the login's; values never appear in an argv or a log."""
    capture: CaptureSpec | None = None
    """Set in modes that extract; None serves plainly."""
    secrets: list[str] = Field(default_factory=list)
    """Keys of `env` whose values are shown nowhere and written nowhere."""
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
    """`psutil.Process.create_time()`: moves when the host's clock is set."""
    start: str = ""
    """The boot, and the clock ticks after it, at which it began: moves with nothing. "" where that is not told."""
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
    mark: str = ""
    """What every process of this start carries as `ROOST_SERVER` in its environment."""
    supervisor: ProcessRef | None = None
    server: ProcessRef | None = None
    authorization: str = ""
    """The file with the HTTP header that every request must carry; readable by the server's user alone."""
    capture: CaptureState | None = None
    sglang: str = ""
    canary: str = ""
    """How exactly the canary was captured before the server counted as ready."""
    spec: ServerSpec
    started_at: float = 0.0
    ready_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    cause: str = ""
    """One sentence on why it failed."""
    trouble: str = ""
    """What happened to the server while it ran and was mended, one sentence with its time."""
    restarts: int = 0
    """Starts that followed a crash of the same `serve`."""
    restart_at: float | None = None
    """When the supervisor starts it again; None where it will not."""


class ServeRequest(Message):
    """Start these servers on this host and wait until each is ready."""

    servers: list[ServerSpec]
    replace: bool = False
    """Stop this workdir's own server of the same name first if it runs with another command."""
    restart: bool = False
    """Stop it first whatever it runs with."""
    dry_run: bool = False
    wait_for_lock: bool = False
    """Wait for another operator's command to end instead of refusing."""


class PlannedStart(Message):
    """A start as it will run, exactly; secrets in the environment are shown as `***`."""

    name: str
    command: list[str]
    env: dict[str, str]
    """What is set on top of the login's environment."""
    log: str
    steps: list[str] = Field(default_factory=list)
    """What happens before the start, one sentence each."""


class ServeResult(Message):
    """The servers once ready; with `dry_run` only `planned` is filled."""

    servers: list[ServerState] = Field(default_factory=list)
    planned: list[PlannedStart] = Field(default_factory=list)


class ServersRequest(Message):
    """Which servers this workdir's records know; changes nothing."""

    names: list[str] = Field(default_factory=list)
    """Empty for all."""
    ask: bool = False
    """Ask each server that is ready for a generation, and say so if none comes back within seconds."""


class ServerReport(Message):
    """A server's record beside what is really there."""

    state: ServerState
    alive: bool
    """The recorded process lives (same pid and create time, no zombie)."""
    supervised: bool
    """Its supervisor lives."""
    problem: str = ""
    """One sentence if record and reality differ, or if something happened to the server while it ran."""
    remedy: str = ""
    """What to type about it."""


class ServersResult(Message):
    """All servers of this workdir, by name."""

    servers: list[ServerReport]


class ProcessRow(Message):
    """A process as `inv stop` and `inv free` show it before anything is done to it."""

    pid: int
    user: str
    age_seconds: float
    gpu_bytes: int | None = None
    """GPU memory that the driver charges to it; None where no driver says."""
    command: str
    holds: list[str] = Field(default_factory=list)
    """Why it is shown: `port 8000`, `/dev/nvidia0`, `dump directory …`, `SGLang server`."""
    owner: str = ""
    """The Roost server that it belongs to, as `NAME in WORKDIR`; empty for anyone else's."""


class Needs(Message):
    """What a server of the inventory takes of a host, so that whoever holds it can be named."""

    server: str
    port: int
    gpus: list[GpuId] = Field(default_factory=list)
    dump_dir: str | None = None


class StopRequest(Message):
    """Stop this workdir's servers; with `force` also whatever else stands in their way."""

    names: list[str] = Field(default_factory=list)
    """Empty for all."""
    needs: list[Needs] = Field(default_factory=list)
    """What servers will need here, beside what the recorded ones had."""
    everything: bool = False
    """Also look for SGLang servers that hold none of the needs (`inv free`)."""
    force: bool = False
    """End exactly what would be listed in `others`."""
    dry_run: bool = False
    grace_seconds: float = 30.0
    """Between SIGTERM and SIGKILL of the whole process group."""
    wait_for_lock: bool = False


class StopResult(Message):
    """What was stopped (with `dry_run`: would be) and what remains."""

    stopped: list[str] = Field(default_factory=list)
    """Names of this workdir's servers that were running and are gone."""
    processes: list[ProcessRow] = Field(default_factory=list)
    """Every process that was ended."""
    others: list[ProcessRow] = Field(default_factory=list)
    """Not of this workdir's servers and in the way: ended only with `force`."""
    forced: bool = False
    """Whether `others` were ended."""
    remaining: list[str] = Field(default_factory=list)
    """What is still there after the deadline, one sentence each with its owner."""
    notes: list[str] = Field(default_factory=list)
    """What a person should know and need not act on (a zombie that holds nothing)."""
    freed: list[str] = Field(default_factory=list)
    """Dump directories emptied and shared memory removed, one sentence each."""


class CanaryRequest(Message):
    """Compare a canary's dump with what its own hook saw; sent by the supervisor on the same host."""

    dumps: list[str]
    """One, or one for every pipeline stage that has slots."""
    hooks: list[str]


class CanaryResult(Message):
    """Every slot is its boundary."""

    slots: int
    largest_error: float
    """Largest row-wise relative difference."""


class AddressRequest(Message):
    """Which address does an interface of this host have, for the rendezvous of a server over several hosts?"""

    interface: str


class AddressResult(Message):
    """An address that is not reachable from the internet."""

    address: str


class SuperviseRequest(Message):
    """Be the supervisor of the server whose `state.json` says `starting`; sent by `serve` on the same host."""

    name: str
    env: dict[str, str]
    """The server's whole environment, secrets included: it travels through a pipe and is written nowhere."""
    config: dict[str, Any] = Field(default_factory=dict)
    """What the operator's own `--config` file holds."""
    closes_admin: bool = False
    """Nobody may use the endpoints that change a running server."""
