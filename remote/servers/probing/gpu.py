"""GPU memory as the driver charges it: NVML where nvidia-ml-py is installed, `nvidia-smi` otherwise.

Runs on the host, called by preflight, `stop` and `free`. Read-only; a host without GPUs has none.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from remote.shared.messages.server import GpuId

SMI_SECONDS = 30.0
"""nvidia-smi on a box whose driver is sick can hang for ever."""


@dataclass(frozen=True)
class Gpu:
    """One GPU; inside a container a process's pid may be the outer one and mean nothing here."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    processes: dict[int, int] = field(default_factory=dict)
    """pid → bytes charged to it."""
    minor: int | None = None
    """Number of its device node where NVML tells; inside a container it may differ from the index."""
    uuid: str = ""

    @property
    def node(self) -> str:
        """Its device node."""
        return f"/dev/nvidia{self.index if self.minor is None else self.minor}"

    @property
    def is_idle(self) -> bool:
        """Nothing but the driver's own share is used: below 1 % of the memory, or 1 GiB."""
        return self.used_bytes < max(1 << 30, self.total_bytes // 100)

    def describe_charge(self) -> str:
        """Who the memory that is not given back is charged to."""
        pids = ", ".join(f"pid {pid}" for pid in sorted(self.processes))
        by = pids or "a process that this host or container does not show"
        return f"GPU {self.index} still has {self.used_bytes / (1 << 30):.1f} GiB in use, by {by}"


def indices(wanted: Iterable[GpuId], found: list[Gpu]) -> set[int]:
    """The wanted GPUs as indices: ordinals as they are, a UUID (or its beginning, as CUDA takes it) as its GPU's.

    What is not among `found` is left out, and so are MIG slices: the driver charges memory to their whole GPU.
    """
    chosen = set()
    for one in wanted:
        if isinstance(one, int):
            chosen.add(one)
        else:
            chosen |= {gpu.index for gpu in found if gpu.uuid.startswith(one)}
    return chosen


def gpus() -> list[Gpu]:
    """All GPUs that this user can see, by index; empty on a host without a driver."""
    for source in (_by_nvml, _by_smi):
        found = source()
        if found is not None:
            return found
    return []


def charged() -> dict[int, int]:
    """GPU memory in bytes by pid, over all GPUs."""
    total: dict[int, int] = {}
    for gpu in gpus():
        for pid, size in gpu.processes.items():
            total[pid] = total.get(pid, 0) + size
    return total


def _by_nvml() -> list[Gpu] | None:
    """None where nvidia-ml-py or the driver's library is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        with _nvml(pynvml):
            return [_nvml_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return None


@contextmanager
def _nvml(pynvml: Any) -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _nvml_gpu(pynvml: Any, index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    return Gpu(
        index=index,
        name=_text(name),
        total_bytes=int(memory.total),
        used_bytes=int(memory.used),
        processes={
            int(process.pid): int(process.usedGpuMemory or 0)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        },
        minor=int(pynvml.nvmlDeviceGetMinorNumber(handle)),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
    )


def _text(value: bytes | str) -> str:
    """Older bindings answer in bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _by_smi() -> list[Gpu] | None:
    rows = smi("--query-gpu=index,uuid,name,memory.total,memory.used")
    if rows is None:
        return None
    apps = smi("--query-compute-apps=gpu_uuid,pid,used_memory") or []
    return parse_smi(rows, apps)


def parse_smi(rows: list[list[str]], apps: list[list[str]]) -> list[Gpu]:
    """GPUs from nvidia-smi's rows (index, uuid, name, MiB, MiB) and its processes' (uuid, pid, MiB or `[N/A]`)."""
    found = []
    for index, uuid, name, total, used in rows:
        mine = {int(pid): _mebibytes(size) for owner, pid, size in apps if owner == uuid and pid.isdecimal()}
        found.append(Gpu(int(index), name, _mebibytes(total), _mebibytes(used), mine, uuid=uuid))
    return found


def _mebibytes(text: str) -> int:
    return int(text) << 20 if text.isdecimal() else 0


def smi(query: str, run: Callable[..., Any] = subprocess.run) -> list[list[str]] | None:
    """Rows of cells that `nvidia-smi QUERY` prints; None where there is no driver, or one that hangs."""
    try:
        answer = run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=SMI_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    return [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
