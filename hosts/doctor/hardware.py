"""Findings about GPUs and the links between them. Laptop's side, called by `judge`; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hosts.doctor.findings import Expectations, Finding, green, red, yellow
from hosts.units import size
from remote.shared.messages.facts import Facts, GpuFact, GpuFacts, GpuProcess

SLOW_WAYS = {"SYS", "NODE", "PHB"}
"""Connections through the CPU's interconnect or host bridge, which slow down every layer's all-reduce."""
IDLE_BYTES = 1 << 30
"""GPU memory that the driver itself may use."""
SHOWN = 8


def gpus(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Check the number of GPUs, and whether the driver fits the installed torch."""
    found = facts.gpu.gpus
    if not found and wanted.gpus == 0:
        yield green("gpus", "none, as the inventory says")
        return
    if len(found) < wanted.gpus:
        why = f" ({facts.gpu.problem})" if facts.gpu.problem else ""
        yield red(
            "gpus",
            f"{len(found)} of the {wanted.gpus} GPUs that the inventory promises{why}",
            "Run nvidia-smi there, check the driver and the container's GPUs; or correct `gpus` and `tp`.",
        )
    elif found:
        yield green("gpus", _named(found))
    if found:
        yield driver(facts)


def _named(found: list[GpuFact]) -> str:
    kinds = Counter((gpu.name, gpu.total_bytes) for gpu in found)
    return ", ".join(f"{count} x {name}, {size(total)}" for (name, total), count in kinds.items())


def driver(facts: Facts) -> Finding:
    """Judge the driver: torch's CUDA needs a driver of the same major version or a newer one."""
    cuda, built = facts.gpu.cuda, facts.python.torch_cuda
    said = f"driver {facts.gpu.driver or 'unknown'}, CUDA up to {cuda or 'unknown'}"
    if facts.python.packages.get("torch") and not built:
        return red(
            "driver",
            f"{said}, but torch {facts.python.packages['torch']} is built without CUDA",
            "Install SGLang's own torch into this Python, or set `python` to the Python that has it.",
        )
    if cuda and built and _major(built) > _major(cuda):
        return red(
            "driver",
            f"{said}, but torch is built for CUDA {built}",
            f"Install a driver for CUDA {_major(built)}, or a torch for CUDA {_major(cuda)}.",
        )
    return green("driver", f"{said}, torch built for {built or 'unknown'}")


def _major(version: str) -> int:
    head = version.split(".", maxsplit=1)[0]
    return int(head) if head.isdecimal() else 0


def occupants(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Judge who uses the GPUs; nothing is known about pids of another container."""
    strangers = [(gpu, process) for gpu in facts.gpu.gpus for process in gpu.processes if not process.ours]
    unexplained = [gpu for gpu in facts.gpu.gpus if not gpu.processes and gpu.used_bytes >= IDLE_BYTES]
    if strangers:
        shown = "; ".join(_occupant(gpu, process) for gpu, process in strangers[:SHOWN])
        more = f"; and {len(strangers) - SHOWN} more" if len(strangers) > SHOWN else ""
        yield yellow(
            "gpu processes",
            f"not of this workdir's servers: {shown}{more}",
            "`inv free` names these processes; `inv free --force` ends them.",
        )
    if unexplained:
        names = ", ".join(f"GPU {gpu.index} ({size(gpu.used_bytes)})" for gpu in unexplained)
        yield yellow(
            "gpu memory",
            f"in use by processes that this host or container does not show: {names}",
            "Look from outside the container; memory of a killed process can stay charged for seconds.",
        )
    if facts.gpu.gpus and not strangers and not unexplained:
        ours = {process.ours for gpu in facts.gpu.gpus for process in gpu.processes}
        servers = f"servers of this workdir only: {', '.join(sorted(ours))}"
        yield green("gpu processes", servers if ours else "none")


def _occupant(gpu: GpuFact, process: GpuProcess) -> str:
    used = f"GPU {gpu.index}: pid {process.pid}, {size(process.used_bytes)}"
    if not process.visible:
        return f"{used} (of another container or of the outer machine)"
    return f"{used}, {process.user}, {process.command or 'no command line'}"


def links(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Judge the links between a server's GPUs, and whether the GPUs can read each other's memory."""
    gpu = facts.gpu
    if len(gpu.gpus) < 2:
        return
    if not gpu.links:
        yield yellow("gpu links", "nvidia-smi does not show the topology", "Run `nvidia-smi topo -m` there.")
        return
    refused = [link for link in gpu.links if link.p2p not in {"OK", ""}]
    slow = [link for link in gpu.links if link.way in SLOW_WAYS]
    ways = ", ".join(f"{way} ({count})" for way, count in Counter(link.way for link in gpu.links).most_common())
    if refused and wanted.tp > 1:
        yield yellow(
            "gpu links",
            f"{len(refused)} of {len(gpu.links)} pairs have no peer access ({refused[0].p2p}): {ways}",
            "NCCL then uses shared memory, which is slower; check the ACS and IOMMU settings.",
        )
    elif slow and wanted.tp > 1:
        yield yellow("gpu links", f"{len(slow)} of {len(gpu.links)} pairs go through the CPU: {ways}", _advice(gpu))
    else:
        yield green("gpu links", ways)


def _advice(gpu: GpuFacts) -> str:
    """Return advice for slow links: servers run faster on GPUs that NVLink joins."""
    near = any(link.way.startswith("NV") for link in gpu.links)
    inside = "Give each server GPUs that NVLink joins (`servers`); " if near else ""
    return f"{inside}`inv tune` finds the NCCL variables for this host."
