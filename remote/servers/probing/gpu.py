"""GPU memory as the driver charges it: NVML where nvidia-ml-py is installed, `nvidia-smi` otherwise.

Runs on the host, called by preflight, `stop` and `free`. Read-only.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from remote.shared.messages.server import GpuId

SMI_SECONDS = 30.0
"""nvidia-smi can hang for ever if the driver is broken."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. Inside a container, pids may be those of the outer host, which mean nothing here."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    processes: dict[int, int] = field(default_factory=dict)
    """The bytes charged to each pid."""
    minor: int | None = None
    """The number of the device node, if NVML tells it; inside a container it may differ from the index."""
    uuid: str = ""

    @property
    def node(self) -> str:
        """Return the path of the GPU's device node."""
        return f"/dev/nvidia{self.index if self.minor is None else self.minor}"

    @property
    def is_idle(self) -> bool:
        """Return whether only the driver's own share is in use: below 1 % of the memory, or below 1 GiB."""
        return self.used_bytes < max(1 << 30, self.total_bytes // 100)

    def describe_charge(self) -> str:
        """Return a phrase on how much memory is in use, and which processes it is charged to."""
        pids = ", ".join(f"pid {pid}" for pid in sorted(self.processes))
        by = pids or "a process that this host or container does not show"
        return f"GPU {self.index} still has {self.used_bytes / (1 << 30):.1f} GiB in use, by {by}"


def indices(wanted: Iterable[GpuId], found: list[Gpu]) -> set[int]:
    """Return the indices of the wanted GPUs; a UUID, or the beginning of one as CUDA takes it, stands for its GPU.

    GPUs that are not in `found` are left out. So are MIG slices: the driver charges memory to their whole GPU.
    """
    chosen = set()
    for one in wanted:
        if isinstance(one, int):
            chosen.add(one)
        else:
            chosen |= {gpu.index for gpu in found if gpu.uuid.startswith(one)}
    return chosen


def gpus() -> list[Gpu]:
    """Return all GPUs that this user can see, by index; none on a host without a driver."""
    for source in (_by_nvml, _by_smi):
        found = source()
        if found is not None:
            return found
    return []


def charged() -> dict[int, int]:
    """Return the GPU memory in bytes that is charged to each pid, over all GPUs."""
    total: dict[int, int] = {}
    for gpu in gpus():
        for pid, size in gpu.processes.items():
            total[pid] = total.get(pid, 0) + size
    return total


def _by_nvml() -> list[Gpu] | None:
    """Return the GPUs as NVML tells them, or None if nvidia-ml-py or the driver's library is missing."""
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
    """Return `value` as text: older bindings answer in bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _by_smi() -> list[Gpu] | None:
    rows = smi("--query-gpu=index,uuid,name,memory.total,memory.used")
    if rows is None:
        return None
    apps = smi("--query-compute-apps=gpu_uuid,pid,used_memory") or []
    return parse_smi(rows, apps)


def parse_smi(rows: list[list[str]], apps: list[list[str]]) -> list[Gpu]:
    """Return the GPUs in nvidia-smi's rows (index, uuid, name, MiB, MiB; processes: uuid, pid, MiB or `[N/A]`)."""
    found = []
    for index, uuid, name, total, used in rows:
        mine = {int(pid): _mebibytes(size) for owner, pid, size in apps if owner == uuid and pid.isdecimal()}
        found.append(Gpu(int(index), name, _mebibytes(total), _mebibytes(used), mine, uuid=uuid))
    return found


def _mebibytes(text: str) -> int:
    return int(text) << 20 if text.isdecimal() else 0


def smi(query: str, run: Callable[..., Any] = subprocess.run) -> list[list[str]] | None:
    """Return the rows of cells that `nvidia-smi QUERY` prints, or None if there is no driver or it hangs."""
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
