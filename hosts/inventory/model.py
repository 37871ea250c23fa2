"""The validated inventory. Each `Host` is complete: its own settings merged over the defaults.

Sizes accept `64GiB`-style text and are bytes here; durations are seconds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from hosts.inventory.address import split_address
from hosts.inventory.document import Written, WrittenFloat
from hosts.inventory.kept import Kept
from remote.shared.messages.server import Attach, FinalNorm, GpuId
from remote.shared.shard.boundaries import FORM, are_rising

FlagValue = str | int | float | bool | list[str | int | float]
Format = Literal["speculators", "speculators-v1", "specforge", "model-optimizer"]

DEFAULT_SSH_CONFIG = "~/.ssh/config"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def _text(value: object) -> object:
    """Return environment values as text, so that they reach the server as written: `off`, `010`, `1:30`, `true`."""
    if isinstance(value, dict):
        return {key: as_text(item) for key, item in value.items()}
    return value


def as_text(value: object) -> object:
    """Return a number or switch as the text that was written in the file; any other value unchanged."""
    if isinstance(value, Written | WrittenFloat):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _flag(value: object) -> object:
    """Return a flag's value as written."""
    if isinstance(value, list):
        return [_flag(item) for item in value]
    return value.text if isinstance(value, Written | WrittenFloat) else value


def _path(value: object) -> object:
    return value.text if isinstance(value, Written | WrittenFloat) else value


_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def _seconds(value: object) -> object:
    """Return `30min` in seconds; a plain number is in seconds already."""
    written = value.text if isinstance(value, Written | WrittenFloat) else value
    if not isinstance(written, str):
        return written
    found = _SPAN.fullmatch(written.strip())
    if found is None:
        raise ValueError("write a span of time as 90s, 30min, 2h or 1d")
    return float(found[1]) * _SECONDS[found[2]]


Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A span of time: `90s`, `30min`, `2h`, `1d`, or a number of seconds."""
Environment = Annotated[dict[str, str], BeforeValidator(_text)]
Flag = Annotated[FlagValue, BeforeValidator(_flag)]
Text = Annotated[str, BeforeValidator(_path)]
"""Text as written: the user name 010 is not a number."""


class Section(BaseModel):
    """A section of the inventory; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


SECRET_FLAGS = ("api-key", "admin-api-key", "ssl-keyfile-password")
"""Flags with secrets: SGLang reads them only from its command line, which every user of the host can see."""
SECRET_FLAG = "secret_flag"  # noqa: S105
"""The type of a validation error whose input must not be shown."""


class Mode(Section):
    """One complete way of running the server: `inv serve --mode NAME`."""

    capture: bool = False
    """Whether hidden states are captured; Roost adds the flags that capture needs for the installed SGLang."""
    flags: dict[str, Flag] = Field(default_factory=dict)
    """Arguments of `sglang.launch_server` by name: true gives a bare flag, false none, a list several values."""
    env: Environment = Field(default_factory=dict)
    why: dict[str, str] = Field(default_factory=dict)
    """A sentence on each flag or variable, which `inv diff-modes` shows."""
    restart: bool = False
    """Start the server again after a crash, with a capped backoff."""

    @field_validator("flags")
    @classmethod
    def _no_secrets(cls, value: dict[str, FlagValue]) -> dict[str, FlagValue]:
        for name, given in value.items():
            flag = name.partition("=")[0].lstrip("-").replace("_", "-")
            # SGLang's parser accepts abbreviations; --ssl-keyfile is another flag.
            meant = [secret for secret in SECRET_FLAGS if secret.startswith(flag) and flag != "ssl-keyfile"]
            if flag and meant and given is not False:
                raise PydanticCustomError(
                    SECRET_FLAG,
                    "the flag --{flag} would show its secret to every user of the host: SGLang takes it only on "
                    "the command line; remove it: servers listen on 127.0.0.1, and other secrets belong in `secrets`",
                    {"flag": meant[0], "key": name},
                )
        return value


_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}")


class ServerEntry(Section):
    """One of several servers on a host."""

    name: str | None = None
    gpus: list[GpuId] | None = None
    """CUDA ordinals, or UUIDs of GPUs and MIG slices."""
    port: int | None = Field(default=None, ge=1, le=65535)
    tp: int | None = Field(default=None, ge=1)
    nodes: list[str] = Field(default_factory=list)
    """Names of all inventory hosts that this server spans, including this one; empty for a server on one host."""

    @field_validator("gpus")
    @classmethod
    def _are_gpus(cls, value: list[GpuId] | None) -> list[GpuId] | None:
        for one in value or []:
            if isinstance(one, str) and not _UUID.fullmatch(one):
                raise ValueError(f"{one!r} is neither an ordinal nor a UUID as `nvidia-smi -L` shows it (GPU-…, MIG-…)")
        return value


class Notify(Section):
    """What is notified of servers that are ready, failed or restarted, and of runs that finished, failed or stalled."""

    command: str | None = None
    """A command that runs on the laptop with the event's JSON on stdin, split like a shell line but without a shell."""
    webhook: str | None = None
    """An http(s) address that gets the event as a POST, sent by the host itself: also while the laptop is closed."""
    form: Literal["auto", "json", "slack"] = "auto"
    """What is posted: the event's JSON, or the `text` that Slack and Mattermost expect; by the address if `auto`."""
    sent_by: Literal["host", "laptop"] = "host"
    """`laptop` for hosts that reach no webhook; then nothing is sent while no command runs here."""
    stalled_after: Seconds = Field(default=600.0, gt=0)
    """A run that should work but has finished no record for this long is reported as stalled."""

    @property
    def posts_as(self) -> Literal["json", "slack"]:
        """The form of the post, with `auto` decided."""
        if self.form != "auto":
            return self.form
        return "slack" if (urlsplit(self.webhook or "").hostname or "") == "hooks.slack.com" else "json"


class Host(Section):
    """One host with every setting that Roost needs."""

    name: str
    connection: Literal["ssh", "local"] = "ssh"
    address: Text | None = None
    """Host name, address or alias of the OpenSSH configuration; default: the host's name in the inventory.

    The parts of `user@host:2222`, `ssh://user@host:2222` and `[::1]:2222` become `user` and `ssh_port`.
    """
    user: Text | None = None
    ssh_port: int | None = Field(default=None, ge=1, le=65535)
    identity_file: str | None = None
    ssh: Literal["auto", "fabric", "openssh"] = "auto"
    """What carries the control connection; `auto` uses Fabric unless the OpenSSH configuration needs OpenSSH."""
    ssh_config: str = DEFAULT_SSH_CONFIG
    known_hosts: str | None = None
    """The file of host keys; default: the OpenSSH configuration's, else `~/.ssh/known_hosts`."""
    connect_timeout: float = Field(default=15.0, gt=0)

    python: str = "python3"
    """The Python that SGLang is installed in; `~/` is the user's home folder on the host."""
    exec: str = ""
    """A command prefix for hosts with SGLang in a container: `docker exec -i sglang`."""
    workdir: str = "~/roost"
    log_dir: str | None = None
    env: Environment = Field(default_factory=dict)
    secrets: list[str] = Field(default_factory=list)
    """Names of the laptop's environment variables that the servers get; values are never shown or stored."""

    model: str | None = None
    """The path of the model on the host."""
    context_length: int | None = Field(default=None, ge=1)
    """The longest record in tokens; default: the model's own limit."""
    gpus: int = Field(default=8, ge=0)
    """The number of GPUs that the host should have; 0 for a CPU host."""
    tp: int = Field(default=8, ge=1)
    port: int = Field(default=8000, ge=1, le=65535)
    max_running_requests: int | None = Field(default=None, ge=1)
    servers: list[ServerEntry] = Field(default_factory=list)
    private_interface: str | None = None
    """The network interface for the rendezvous of a server that spans hosts; a public address is refused."""
    modes: dict[str, Mode] = Field(default_factory=dict)
    nccl: Environment = Field(default_factory=dict)
    ready_timeout: float = Field(default=1800.0, gt=0)

    layers: list[int] = Field(default_factory=list)
    """Boundaries to capture (k is the residual stream after k blocks); the final state is always the last slot."""
    final: FinalNorm = "pre"
    attach: Attach = "auto"
    dump_dir: str = "/dev/shm/sglang_hs"  # noqa: S108
    dump_high_water: ByteSize = ByteSize(64 << 30)
    pinned_memory: ByteSize = ByteSize(4 << 30)
    format: Format = "speculators"
    store: Literal["plain", "compressed"] = "plain"
    min_free: ByteSize = ByteSize(20 << 30)
    parity_rate: float = Field(default=0.01, ge=0, le=1)
    in_flight_tokens: int = Field(default=131_072, ge=1)
    """Tokens of the requests that extraction keeps in flight on each server: enough to keep prefill busy."""
    tokens_per_second: float | None = Field(default=None, gt=0)
    """The extraction speed for planning, until it has been measured."""
    tune: dict[str, list[Flag]] = Field(default_factory=dict)
    """The grid of NCCL variables and server flags for `inv tune`."""
    notify: Notify = Field(default_factory=Notify)
    cost_per_hour: float | None = Field(default=None, gt=0)
    """Dollars for an hour of this host; plan, status, watch and report then say what a run costs."""
    idle_stop: Seconds | None = Field(default=None, ge=60)
    """End servers that no run and no other client has used for this long, as in `30min`; never, if unset."""

    @model_validator(mode="before")
    @classmethod
    def _address_in_parts(cls, data: Any) -> Any:
        return split_address(data)

    @field_validator("python")
    @classmethod
    def _home_of_the_user(cls, value: str) -> str:
        if value.startswith("~") and not value.startswith("~/"):
            raise ValueError("`~/` is the user's own home folder on the host; write another user's as a full path")
        return value

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("a host's name may only have letters, digits, '.', '_' and '-'; put the rest in `address`")
        return value

    @field_validator("address", "user")
    @classmethod
    def _no_option(cls, value: str | None) -> str | None:
        if value is not None and (
            value.startswith("-") or any(char.isspace() or not char.isprintable() for char in value)
        ):
            raise ValueError("must not start with '-' or contain spaces")
        return value

    @field_validator("identity_file", "ssh_config", "known_hosts")
    @classmethod
    def _one_line(cls, value: str | None) -> str | None:
        if value is not None and any(char in value for char in "\n\r\0"):
            raise ValueError("OpenSSH's configuration cannot name a file with a line break")
        return value

    @field_validator("layers")
    @classmethod
    def _rising(cls, value: list[int]) -> list[int]:
        if not are_rising(value):
            raise ValueError(f"layers are {FORM}")
        return value

    @model_validator(mode="after")
    def _absolute_paths(self) -> Host:
        for key in ("model", "dump_dir", "log_dir", "workdir"):
            path = getattr(self, key)
            if path is not None and not path.startswith(("/", "~")):
                raise ValueError(f"{key} must be an absolute path on the host, not {path!r}")
        return self


class Inventory(Section):
    """The whole inventory."""

    path: Path
    hosts: dict[str, Host]
    groups: dict[str, list[str]] = Field(default_factory=dict)
    local: Host
    """The laptop itself, for the data verbs."""
    clusters: dict[str, Any] = Field(default_factory=dict)
    """`hosts.inventory.clusters.Cluster` by name."""
    cluster_hosts: dict[str, Host] = Field(default_factory=dict)
    """Each cluster as the host that its runs are planned for and pulled from: its login host, in its shared folder."""

    @property
    def kept(self) -> Kept:
        """The paths of this inventory's plans, measurements and searches on the laptop."""
        return Kept.beside(self.path)
