"""Turns a host's settings and a mode into the `ServerSpec`s that are sent to the host."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hosts.errors import UsageError, nearest
from hosts.inventory.model import FlagValue, Host, Mode, ServerEntry
from remote.shared.messages.server import CaptureSpec, GpuId, Needs, ServerSpec

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def server_specs(host: Host, mode_name: str) -> list[ServerSpec]:
    """Return the resolved servers of `host` in `mode_name`; raises UsageError for missing settings."""
    mode = find_mode(host, mode_name)
    if host.model is None:
        raise UsageError(f"{host.name} has no `model` in the inventory.", remedy="Give the model's path on the host.")
    if mode.capture and not host.layers:
        raise UsageError(
            f"{host.name} has no `layers` in the inventory.",
            remedy="Name the boundaries to capture, as in `layers: [3, 31, 59]`.",
        )
    return [_spec(host, mode_name, mode, entry, number) for number, entry in enumerate(_entries(host))]


def server_needs(host: Host) -> list[Needs]:
    """Return the GPUs, ports and folders that the host's servers need in any mode."""
    return [
        Needs(
            server=_name(entry, number),
            port=_port(host, entry, number),
            gpus=entry.gpus or [],
            dump_dir=_dump_dir(host, _name(entry, number)),
        )
        for number, entry in enumerate(_entries(host))
    ]


def _entries(host: Host) -> list[ServerEntry]:
    return host.servers or [ServerEntry(name="main", gpus=list(range(min(host.gpus, host.tp))))]


def _name(entry: ServerEntry, number: int) -> str:
    return entry.name or f"server{number}"


def _port(host: Host, entry: ServerEntry, number: int) -> int:
    return entry.port or host.port + number


def _dump_dir(host: Host, server: str) -> str:
    return f"{host.dump_dir}/{server}" if len(host.servers) > 1 else host.dump_dir


def find_mode(host: Host, name: str) -> Mode:
    """Return the host's mode of that name; raises UsageError with the nearest name."""
    if name not in host.modes:
        known = nearest(name, host.modes, cutoff=0.4) or f"There are: {', '.join(host.modes) or 'none'}."
        raise UsageError(f"{host.name} has no mode {name!r}.", remedy=known)
    return host.modes[name]


def _spec(host: Host, mode_name: str, mode: Mode, entry: ServerEntry, number: int) -> ServerSpec:
    assert host.model is not None
    name = _name(entry, number)
    flags = dict(mode.flags)
    gpus = entry.gpus if entry.gpus is not None else []
    env = {**host.env, **host.nccl, **mode.env}
    _refuse_visible_devices(host, env, gpus)
    if host.max_running_requests is not None:
        flags.setdefault("max-running-requests", host.max_running_requests)
    if host.context_length is not None:
        flags.setdefault("context-length", host.context_length)
    return ServerSpec(
        name=name,
        mode=mode_name,
        model=host.model,
        port=_port(host, entry, number),
        tp=entry.tp or host.tp,
        gpus=gpus,
        flags=flag_arguments(flags),
        env={**env, **_secrets(host)},
        secrets=host.secrets,
        capture=_capture(host, name) if mode.capture else None,
        ready_timeout_seconds=host.ready_timeout,
        restart=mode.restart,
        log_dir=host.log_dir,
        nodes=entry.nodes,
    )


def gpu_ordinals(spec: ServerSpec) -> list[int]:
    """Return the server's GPUs by ordinal; raises UsageError if the inventory names a GPU by its UUID."""
    named = [one for one in spec.gpus if isinstance(one, str)]
    if named:
        raise UsageError(f"{named[0]} is a UUID, but tuning needs ordinals.", remedy="Write them as in [0, 1].")
    return [one for one in spec.gpus if isinstance(one, int)]


def _refuse_visible_devices(host: Host, env: dict[str, str], gpus: Sequence[GpuId]) -> None:
    """Raise UsageError if `env` gives the server other GPUs than the inventory."""
    visible = env.get(VISIBLE_DEVICES)
    if visible is not None and gpus:
        named = ", ".join(part.strip() for part in visible.split(",") if part.strip())
        raise UsageError(
            f"{host.name} sets {VISIBLE_DEVICES}={visible} in `env`, but Roost gives its server the GPUs "
            f"{', '.join(map(str, gpus))}.",
            remedy=f"Remove it from `env` and write `servers: [{{gpus: [{named}]}}]`.",
        )


def _capture(host: Host, server: str) -> CaptureSpec:
    return CaptureSpec(
        layers=host.layers,
        final=host.final,
        dump_dir=_dump_dir(host, server),
        high_water_bytes=int(host.dump_high_water) // max(1, len(host.servers)),
        pinned_bytes=int(host.pinned_memory),
        attach=host.attach,
    )


def flag_arguments(flags: dict[str, FlagValue]) -> list[str]:
    """Return `{"tp-size": 8, "trust-remote-code": True}` as arguments, in the order written."""
    arguments: list[str] = []
    for name, value in flags.items():
        if value is False:
            continue
        arguments.append(f"--{name.lstrip('-').replace('_', '-')}")
        if isinstance(value, list):
            arguments.extend(str(item) for item in value)
        elif value is not True:
            arguments.append(str(value))
    return arguments


def _secrets(host: Host) -> dict[str, str]:
    missing = [name for name in host.secrets if name not in os.environ]
    if missing:
        raise UsageError(
            f"{host.name} needs the secret {missing[0]}, which your environment lacks.",
            remedy=f"export {missing[0]}=… and try again.",
        )
    return {name: os.environ[name] for name in host.secrets}
