"""Reads the GPUs for the recorder: by NVML, which stays open, or by `nvidia-smi` once a minute.

Runs on the host; read-only. If no driver answers, one sentence says so, and the other parts of a reading continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from remote.servers.probing.gpu import smi
from remote.shared.messages.history import GpuReading

NO_DRIVER = "There is no NVIDIA driver, so nothing is known about GPUs."
SMI_EVERY_SECONDS = 60.0
"""Seconds between two calls. nvidia-smi takes up to a second of a core on a host with eight GPUs."""
_SMI = "--query-gpu=index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,clocks.sm"


class Gauges:
    """The GPUs of this host. NVML is opened only once, because opening it takes long."""

    def __init__(self) -> None:
        self.problem = ""
        """One sentence that says why there are no readings; "" if there are."""
        self._nvml: Any = None
        self._smi_at = 0.0
        self._smi_found: list[GpuReading] = []
        if not Path("/proc/driver/nvidia").exists() and not Path("/dev/nvidiactl").exists():
            self.problem = NO_DRIVER
            return
        self._nvml = _nvml()

    def read(self) -> list[GpuReading]:
        """Return the present reading of every GPU; [] and a `problem` if neither NVML nor nvidia-smi answers."""
        if self._nvml is not None:
            try:
                return self._by_nvml()
            except Exception as error:  # NVML's own classes, for example for a GPU that fell off the bus
                self.problem = f"NVML does not answer: {error}."
                return []
        return self._by_smi() if self.problem != NO_DRIVER else []

    def _by_nvml(self) -> list[GpuReading]:
        self.problem = ""
        return [_of_handle(self._nvml, index) for index in range(self._nvml.nvmlDeviceGetCount())]

    def _by_smi(self) -> list[GpuReading]:
        now = time.monotonic()
        if self._smi_at and now - self._smi_at < SMI_EVERY_SECONDS:
            return self._smi_found
        rows = smi(_SMI)
        self._smi_at = now
        self._smi_found = [reading for row in rows or [] if (reading := of_smi(row)) is not None]
        self.problem = "" if self._smi_found else "Neither NVML (nvidia-ml-py) nor nvidia-smi reports the GPUs of "
        "this host."
        return self._smi_found


def of_smi(row: list[str]) -> GpuReading | None:
    """Return a GPU from nvidia-smi's cells. A cell such as `[N/A]` becomes None."""
    if len(row) != 7 or not row[0].isdecimal():
        return None
    use, used, total, watts, celsius, clock = (_number(cell) for cell in row[1:])
    return GpuReading(
        index=int(row[0]),
        use_percent=use,
        memory_bytes=None if used is None else used * (1 << 20),
        total_bytes=None if total is None else total * (1 << 20),
        watts=watts,
        celsius=celsius,
        megahertz=clock,
    )


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _nvml() -> Any:
    """Return the opened NVML; None if nvidia-ml-py or the driver's library is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # an ImportError, or NVML's own
        return None
    return pynvml


def _of_handle(nvml: Any, index: int) -> GpuReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)

    def told(ask: Callable[[], float]) -> float | None:
        """Return the answer; None if this GPU (a MIG slice, a virtual GPU) does not support the question."""
        with suppress(nvml.NVMLError):
            return float(ask())
        return None

    watts = told(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return GpuReading(
        index=index,
        use_percent=told(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        memory_bytes=float(memory.used),
        total_bytes=float(memory.total),
        watts=None if watts is None else watts / 1000,
        celsius=told(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        megahertz=told(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
    )
