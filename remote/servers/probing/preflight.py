"""Checks that this host has what a start needs, before anything is stopped or started; each lack is one sentence.

Runs on the host, called by `serve`. Read-only, apart from binding a port for an instant.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path

import psutil

from remote.servers.lifecycle import records
from remote.servers.probing.gpu import gpus, indices
from remote.servers.probing.holders import port_holders
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.server import GpuId, ServerSpec, ServerState
from remote.shared.paths import ServerPaths
from remote.shared.processes import members

MIN_LOG_BYTES = 256 << 20
"""With less than this free, the workdir's disk is soon full of logs and state files alone."""


def check_together(specs: list[ServerSpec]) -> None:
    """Raise UsageError if two servers of the request share a name, a port, a GPU or a dump directory."""
    if not specs:
        raise UsageError("The request names no server.")
    _unique(specs, "name", lambda spec: [spec.name])
    _unique(specs, "port", lambda spec: [spec.port])
    _unique(specs, "GPU", lambda spec: list(spec.gpus))
    _unique(specs, "dump directory", lambda spec: [spec.capture.dump_dir] if spec.capture else [])
    for spec in specs:
        ranks_here = spec.tp // max(1, len(spec.nodes))
        _check_slices(spec, ranks_here)
        if spec.gpus and len(spec.gpus) < ranks_here:
            raise UsageError(
                f"Server {spec.name!r} has tp {spec.tp} and {len(spec.gpus)} GPUs.",
                remedy="Give the server one GPU for each rank, or set a smaller `tp`.",
            )


def check_neighbours(specs: list[ServerSpec], running: list[ServerState]) -> None:
    """Raise HostError if a running server of this workdir has a GPU or a dump directory of `specs`."""
    for spec in specs:
        for state in running:
            shared = [f"GPU {gpu}" for gpu in _shared(spec.gpus, state.spec.gpus)]
            if spec.capture and state.capture and spec.capture.dump_dir == state.capture.dump_dir:
                shared.append(f"the dump directory {state.capture.dump_dir}")
            if shared:
                raise HostError(
                    f"Server {spec.name!r} wants {shared[0]}, which the running server {state.name!r} uses.",
                    remedy=f"Stop that server (`inv stop --server {state.name}`), or give the two different ones.",
                )


def check_host(
    spec: ServerSpec, earlier: ServerState | None, paths: ServerPaths, freed_ports: Collection[int] = ()
) -> None:
    """Raise HostError for the first thing that this host lacks; servers to be replaced will free `freed_ports`."""
    _check_leftovers(paths, earlier)
    _check_gpus(spec)
    if spec.port not in freed_ports:
        _check_port(spec)
    _check_disk(paths.root)
    if spec.capture is not None:
        _check_ram_disk(Path(spec.capture.dump_dir), spec.capture.high_water_bytes)


def _unique(specs: list[ServerSpec], what: str, of: Callable[[ServerSpec], list[Hashable]]) -> None:
    owners: dict[Hashable, str] = {}
    for spec in specs:
        for value in of(spec):
            if value in owners:
                raise UsageError(f"Servers {owners[value]!r} and {spec.name!r} both have the {what} {value}.")
            owners[value] = spec.name


def _check_leftovers(paths: ServerPaths, earlier: ServerState | None) -> None:
    """Raise HostError if ranks of an earlier server still run: after their leader's death they hold its GPUs."""
    state = records.load(paths)
    if earlier is not None or state is None or state.server is None:
        return
    left = members(state.server, state.mark)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise HostError(
            f"The last server {state.name!r} ended, but processes that it started still run: {pids}.",
            remedy="`inv stop` ends them.",
        )


def _check_gpus(spec: ServerSpec) -> None:
    if not spec.gpus:
        return
    known = gpus()
    found = [gpu.index for gpu in known]
    if not found:
        raise HostError(
            f"Server {spec.name!r} wants GPUs {_list(spec.gpus)}, but this host shows no GPU.",
            remedy="Check the driver (nvidia-smi), or set `gpus: 0` for a CPU host.",
        )
    missing = [one for one in spec.gpus if not _is_slice(one) and not indices([one], known) & set(found)]
    if missing:
        here = _list(found) if all(isinstance(one, int) for one in missing) else _list([gpu.uuid for gpu in known])
        raise HostError(
            f"Server {spec.name!r} wants GPU {_list(missing)}, but this host has {here}.",
            remedy="Correct `gpus` or `tp` in the inventory.",
        )


def _is_slice(one: GpuId) -> bool:
    return isinstance(one, str) and one.startswith("MIG-")


def _check_slices(spec: ServerSpec, ranks: int) -> None:
    """Raise UsageError for a MIG slice in a server of several ranks.

    CUDA shows a process only one slice, whatever CUDA_VISIBLE_DEVICES names, and NCCL cannot join slices.
    """
    if any(map(_is_slice, spec.gpus)) and (ranks > 1 or len(spec.gpus) > 1):
        raise UsageError(
            f"Server {spec.name!r} wants {len(spec.gpus)} GPUs with a MIG slice among them and has tp {spec.tp}, but "
            "a slice can serve only one rank.",
            remedy="Give every slice a server of its own with `tp: 1`, or name whole GPUs.",
        )


def _shared(wanted: list[GpuId], taken: list[GpuId]) -> list[GpuId]:
    """Return the GPUs of `wanted` that are also in `taken`, by ordinal or UUID; only UUIDs need the driver."""
    named = [one for one in (*wanted, *taken) if isinstance(one, str)]
    known = gpus() if named and wanted and taken else []
    held = indices(taken, known)
    return [one for one in wanted if one in taken or indices([one], known) & held]


def _check_port(spec: ServerSpec) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", spec.port))
        except PermissionError as error:
            raise HostError(
                f"This user may not listen on port {spec.port}.", remedy="Choose a `port` above 1023."
            ) from error
        except OSError as error:
            holders = port_holders(spec.port)
            by = holders[0].describe() if holders else "a process that this user cannot see"
            raise HostError(
                f"Port {spec.port} is taken by {by}.",
                remedy="`inv free` shows the process, `inv free --force` ends it; or choose another `port`.",
            ) from error


def _check_disk(folder: Path) -> None:
    free = shutil.disk_usage(_existing(folder)).free
    if free < MIN_LOG_BYTES:
        raise HostError(
            f"The workdir's disk has {free >> 20} MiB free, too little for logs.", remedy="`inv clean` frees space."
        )


def _check_ram_disk(folder: Path, high_water: int) -> None:
    """Raise HostError if the dump directory's file system, or the RAM behind it, cannot hold the high-water mark."""
    root = _existing(folder)
    usage = shutil.disk_usage(root)
    own = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
    free = usage.free + own
    if free < high_water:
        raise HostError(
            f"The dump directory's file system ({root}) has {_gib(free)} free and the high-water mark is "
            f"{_gib(high_water)}.",
            remedy="Lower `dump_high_water`, free the RAM disk (`inv free`), or mount a larger one.",
        )
    available = psutil.virtual_memory().available
    if _is_ram(root) and available < high_water:
        raise HostError(
            f"{root} is a RAM disk and the high-water mark is {_gib(high_water)}, but only {_gib(available)} of memory "
            "are available.",
            remedy="Lower `dump_high_water`, or free memory.",
        )


def _is_ram(path: Path) -> bool:
    best = max(
        (part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)),
        key=lambda part: len(part.mountpoint),
        default=None,
    )
    return best is not None and best.fstype in ("tmpfs", "ramfs")


def _existing(path: Path) -> Path:
    """Return the deepest folder of `path` that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _list(names: Sequence[GpuId]) -> str:
    return ", ".join(map(str, names))


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
