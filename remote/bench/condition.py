"""The GPUs' condition around a measurement: clocks, temperature, throttling and other users. Host side."""

from __future__ import annotations

from remote.servers.probing.gpu import gpus, smi
from remote.shared.messages.bench import GpuCondition
from remote.shared.messages.server import ServerState
from remote.shared.processes import members

FIELDS = "index,name,clocks.sm,clocks.mem,temperature.gpu,{reasons}.active,memory.used"
REASON_NAMES = ("clocks_event_reasons", "clocks_throttle_reasons")
"""Drivers before 535 have the second name."""
HARMLESS_REASONS = 0x1 | 0x2
"""Idle, and clocks set by an application (NVML's `nvmlClocksEventReasonGpuIdle` and `…ApplicationsClocksSetting`)."""
REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's `nvmlClocksEventReasons`."""


def conditions() -> list[GpuCondition]:
    """Return one entry for each GPU; empty if no driver answers."""
    answers = (smi(f"--query-gpu={FIELDS.format(reasons=name)}") for name in REASON_NAMES)
    return parse(next((rows for rows in answers if rows), []))


def driver() -> str:
    """Return the NVIDIA driver's version; empty if none answers."""
    rows = smi("--query-gpu=driver_version")
    return rows[0][0] if rows else ""


def parse(rows: list[list[str]]) -> list[GpuCondition]:
    """Parse nvidia-smi's cells; an unknown value (`[N/A]`) is None."""
    return [
        GpuCondition(
            index=int(index),
            name=name,
            sm_mhz=_number(sm),
            memory_mhz=_number(memory),
            celsius=_number(celsius),
            throttled=_reasons(reasons),
            memory_used_bytes=(_number(used) or 0) << 20,
        )
        for index, name, sm, memory, celsius, reasons, used in rows
    ]


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _reasons(text: str) -> str:
    try:
        active = int(text, 16) & ~HARMLESS_REASONS
    except ValueError:
        return ""
    return ", ".join(name for bit, name in REASONS.items() if active & bit)


def slowed(gpus_now: list[GpuCondition]) -> list[str]:
    """Return a sentence for each GPU whose clock is limited."""
    return [f"GPU {gpu.index} was slowed down: {gpu.throttled}." for gpu in gpus_now if gpu.throttled]


def strangers(state: ServerState) -> list[str]:
    """Return a sentence for each foreign process that has memory on one of the server's GPUs.

    Returns nothing inside a container in which the driver names pids of the outer host, because the server's own
    processes are among them.
    """
    own = {process.pid for process in members(state.server, state.mark)} if state.server else set()
    return [
        f"GPU {gpu.index} is also used by pid {pid} ({used / (1 << 30):.1f} GiB)."
        for gpu in gpus()
        if own & gpu.processes.keys()
        for pid, used in sorted(gpu.processes.items())
        if pid not in own
    ]
