"""What a start needs of this host, checked before anything is stopped or started; each lack is one sentence.

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
"""Below this the workdir's disk cannot even take logs and state files for long."""


def check_together(specs: list[ServerSpec]) -> None:
    """Servers of one request must not share a name, a port, a GPU or a dump directory; raises UsageError."""
    if not specs:
        raise UsageError("No server was ordered.")
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
                remedy="Give it as many GPUs as ranks, or a smaller tp.",
            )


def check_neighbours(specs: list[ServerSpec], running: list[ServerState]) -> None:
    """Servers of this workdir that go on must not have a GPU or dump directory of `specs`; raises HostError."""
    for spec in specs:
        for state in running:
            shared = [f"GPU {gpu}" for gpu in _shared(spec.gpus, state.spec.gpus)]
            if spec.capture and state.capture and spec.capture.dump_dir == state.capture.dump_dir:
                shared.append(f"the dump directory {state.capture.dump_dir}")
            if shared:
                raise HostError(
                    f"Server {spec.name!r} wants {shared[0]}, which server {state.name!r} has here and now.",
                    remedy=f"Stop it (`inv stop --server {state.name}`), or give them different ones.",
                )


def check_host(
    spec: ServerSpec, earlier: ServerState | None, paths: ServerPaths, freed_ports: Collection[int] = ()
) -> None:
    """Raise HostError for the first thing that this host lacks; `freed_ports` are those of servers to be replaced."""
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
    """A server whose leader died may have left ranks behind, which hold its GPUs."""
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
            f"Server {spec.name!r} was promised GPUs {_list(spec.gpus)} and this host shows none.",
            remedy="Check the driver (nvidia-smi), or set `gpus: 0` for a CPU host.",
        )
    missing = [one for one in spec.gpus if not _is_slice(one) and not indices([one], known) & set(found)]
    if missing:
        here = _list(found) if all(isinstance(one, int) for one in missing) else _list([gpu.uuid for gpu in known])
        raise HostError(
            f"Server {spec.name!r} wants GPU {_list(missing)} and this host has {here}.",
            remedy="Correct `gpus` or `tp` in the inventory.",
        )


def _is_slice(one: GpuId) -> bool:
    return isinstance(one, str) and one.startswith("MIG-")


def _check_slices(spec: ServerSpec, ranks: int) -> None:
    """CUDA shows a process one MIG slice, whatever CUDA_VISIBLE_DEVICES names, and NCCL joins no slices."""
    if any(map(_is_slice, spec.gpus)) and (ranks > 1 or len(spec.gpus) > 1):
        raise UsageError(
            f"Server {spec.name!r} wants {len(spec.gpus)} GPUs with a MIG slice among them and has tp {spec.tp}: "
            "a slice serves one rank alone.",
            remedy="Give every slice a server of its own with `tp: 1`, or name whole GPUs.",
        )


def _shared(wanted: list[GpuId], taken: list[GpuId]) -> list[GpuId]:
    """Those of `wanted` that are in `taken`, under whichever name; the driver is asked only for UUIDs."""
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
            raise HostError(f"This user may not listen on port {spec.port}.") from error
        except OSError as error:
            holders = port_holders(spec.port)
            by = holders[0].describe() if holders else "a process that this user cannot see"
            raise HostError(
                f"Port {spec.port} is taken by {by}.",
                remedy="`inv free` shows what stands in the way, `inv free --force` ends it; or choose another `port`.",
            ) from error


def _check_disk(folder: Path) -> None:
    free = shutil.disk_usage(_existing(folder)).free
    if free < MIN_LOG_BYTES:
        raise HostError(
            f"The workdir's disk has {free >> 20} MiB free, too little for logs.", remedy="`inv clean` frees disk."
        )


def _check_ram_disk(folder: Path, high_water: int) -> None:
    """The dump directory's file system must hold the high-water mark, and RAM must hold it beside the server."""
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
            f"{root} is a RAM disk, its high-water mark is {_gib(high_water)}, and only {_gib(available)} of memory "
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
    """The deepest folder of `path` that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _list(names: Sequence[GpuId]) -> str:
    return ", ".join(map(str, names))


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
