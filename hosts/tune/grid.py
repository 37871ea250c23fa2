"""The settings to try: NCCL variables and server flags, from the inventory's `tune` or a sensible default. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pydantic import BaseModel, Field

from hosts.errors import UsageError
from hosts.inventory.model import FlagValue, Host
from hosts.inventory.servers import find_mode

DEFAULT_GRID: dict[str, list[FlagValue]] = {
    "NCCL_PROTO": ["LL", "LL128", "Simple"],
    "NCCL_ALGO": ["Ring", "Ring;allreduce:Tree"],
    "NCCL_P2P_LEVEL": ["NVL", "SYS"],
    "NCCL_MAX_NCHANNELS": [8, 16, 32],
    "NCCL_BUFFSIZE": [4194304, 16777216],
    "NCCL_NTHREADS": [256, 512],
    "disable-custom-all-reduce": [True, False],
}
"""Without NVLS, which can put all GPUs of a shared host out of service. Tree is requested for all-reduce alone (NCCL
2.24 and later): NCCL 2.28 refuses it for all functions, because an all-gather has no tree."""

FORBIDDEN = {"NCCL_NVLS_ENABLE"}


class Setting(BaseModel):
    """One point of the grid."""

    env: dict[str, str] = Field(default_factory=dict)
    """NCCL variables; a variable that is missing is not set."""
    flags: dict[str, FlagValue] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name in tables and in the record: `NCCL_ALGO=Ring NCCL_PROTO=LL no --disable-custom-all-reduce`."""
        words = [f"{name}={value}" for name, value in sorted(self.env.items())]
        words += [_flag(name, value) for name, value in sorted(self.flags.items())]
        return " ".join(words) or "nothing set"


def _flag(name: str, value: FlagValue) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"no --{name}"
    return f"--{name}={value}"


def grid_of(host: Host) -> dict[str, list[FlagValue]]:
    """Return the host's grid; raises UsageError if it has a variable or flag that must not be tried."""
    grid = host.tune or DEFAULT_GRID
    for name in grid:
        if name in FORBIDDEN:
            raise UsageError(f"{name} cannot be tuned: it belongs to the host.", remedy="Remove it from `tune`.")
        if not grid[name]:
            raise UsageError(f"`tune` gives no values for {name}.", remedy="List at least one value.")
    return grid


def current(host: Host, mode: str) -> Setting:
    """Return the inventory's current values of everything that the grid varies."""
    grid, flags = grid_of(host), find_mode(host, mode).flags
    known = {**host.env, **host.nccl, **find_mode(host, mode).env}
    return Setting(
        env={name: known[name] for name in grid if is_variable(name) and name in known},
        flags={name: flags.get(name, False) for name in grid if not is_variable(name)},
    )


def collectives(host: Host, mode: str) -> list[Setting]:
    """Return every combination of the NCCL variables, the current one first, with the current flags."""
    now = current(host, mode)
    grid = {name: values for name, values in grid_of(host).items() if is_variable(name)}
    tried = [Setting(env=dict(zip(grid, map(str, point), strict=True)), flags=now.flags) for point in _points(grid)]
    return [now, *(setting for setting in tried if setting != now)]


def with_flags(host: Host, settings: list[Setting]) -> list[Setting]:
    """Return each setting with every combination of the grid's server flags."""
    grid = {name: values for name, values in grid_of(host).items() if not is_variable(name)}
    return [
        Setting(env=setting.env, flags=dict(zip(grid, point, strict=True)))
        for setting in settings
        for point in _points(grid)
    ]


def applied(host: Host, mode: str, setting: Setting) -> Host:
    """Return the host as if the inventory had this setting."""
    tuned = {name for name in grid_of(host) if is_variable(name)}

    def others(env: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in env.items() if name not in tuned}

    of_mode = find_mode(host, mode)
    flags = {**of_mode.flags, **setting.flags}
    changed = of_mode.model_copy(update={"flags": flags, "env": others(of_mode.env)})
    return host.model_copy(
        update={
            "env": others(host.env),
            "nccl": others(host.nccl) | setting.env,
            "modes": {**host.modes, mode: changed},
        }
    )


def is_variable(name: str) -> bool:
    """Return whether an entry of the grid is an environment variable (upper case) rather than a server flag."""
    return name.isupper()


def _points(grid: dict[str, list[FlagValue]]) -> Iterator[tuple[FlagValue, ...]]:
    return itertools.product(*grid.values())
