"""Runs on the host for `remote.facts`: GPUs, their users, and the links between them. Read-only.

Inside a container the driver may name pids of the machine outside: a pid counts as visible here only if a process of
that number exists and holds a GPU's device node.
"""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from remote.facts.programs import say
from remote.servers.lifecycle import records
from remote.servers.probing.gpu import gpus
from remote.shared.messages.facts import GpuFact, GpuFacts, GpuLink, GpuProcess
from remote.shared.paths import Workdir
from remote.shared.processes import members

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU(\d+)")
_NODE = re.compile(r"/dev/nvidia\d+")
COMMAND_SHOWN = 120


def gpu_facts(workdir: Workdir) -> GpuFacts:
    """Return what the driver tells this user."""
    found = gpus()
    if not found:
        return GpuFacts(problem=_why_none())
    ours = _servers_by_pid(workdir)
    facts = [
        GpuFact(
            index=gpu.index,
            name=gpu.name,
            total_bytes=gpu.total_bytes,
            used_bytes=gpu.used_bytes,
            processes=[_process(pid, used, ours) for pid, used in sorted(gpu.processes.items())],
        )
        for gpu in found
    ]
    driver, cuda = versions(say("nvidia-smi"))
    links = topology(say("nvidia-smi", "topo", "-m"), say("nvidia-smi", "topo", "-p2p", "r"))
    return GpuFacts(gpus=facts, links=links if len(facts) > 1 else [], driver=driver, cuda=cuda)


def versions(text: str) -> tuple[str, str]:
    """Return driver and CUDA versions by nvidia-smi's first lines, or by the kernel module if nvidia-smi is missing."""
    driver = re.search(r"Driver Version:\s*([\d.]+)", text)
    cuda = re.search(r"CUDA[\w ]*Version:\s*([\d.]+)", text)
    return driver.group(1) if driver else _module_version(), cuda.group(1) if cuda else ""


def topology(matrix: str, peers: str) -> list[GpuLink]:
    """Return every pair of GPUs from the tables of `nvidia-smi topo -m` and `-p2p r`."""
    ways, reach = _table(matrix), _table(peers)
    pairs = sorted(pair for pair in ways if pair[0] < pair[1])
    return [GpuLink(first=a, second=b, way=ways[a, b], p2p=reach.get((a, b), "")) for a, b in pairs]


def _table(text: str) -> dict[tuple[int, int], str]:
    """Return the cells between GPUs of a table; rows and columns of NICs and affinities are left out."""
    rows = [[cell.strip() for cell in line.split("\t")] for line in _ESCAPES.sub("", text).splitlines()]
    header = next((row for row in rows if len(row) > 1 and not row[0] and _GPU.fullmatch(row[1])), [])
    columns = {place: int(found.group(1)) for place, cell in enumerate(header) if (found := _GPU.fullmatch(cell))}
    cells: dict[tuple[int, int], str] = {}
    for row in rows:
        named = _GPU.fullmatch(row[0]) if row else None
        if named:
            cells.update({(int(named.group(1)), gpu): row[at] for at, gpu in columns.items() if at < len(row)})
    return cells


def _why_none() -> str:
    """Return why no GPU is shown; a host without a driver is a CPU host."""
    if not Path("/proc/driver/nvidia").exists() and not Path("/dev/nvidiactl").exists():
        return "there is no NVIDIA driver"
    return (
        f"the driver {_module_version()} is loaded, but neither NVML nor nvidia-smi shows a GPU to this user".replace(
            "  ", " "
        )
    )


def _module_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found.group(1) if found else ""


def _servers_by_pid(workdir: Workdir) -> dict[int, str]:
    """Return pid → server for every running process that this workdir's servers started."""
    found = {}
    for name in records.names(workdir):
        state = records.load(workdir.server(name))
        if state is not None and state.server is not None:
            found.update({process.pid: name for process in members(state.server, state.mark)})
    return found


def _process(pid: int, used: int, ours: dict[int, str]) -> GpuProcess:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            command = " ".join(" ".join(process.cmdline()).split())[:COMMAND_SHOWN]
            user = process.username()
    except psutil.Error:
        return GpuProcess(pid=pid, used_bytes=used, visible=False)
    if not _may_hold_gpu(pid):
        return GpuProcess(pid=pid, used_bytes=used, visible=False)
    return GpuProcess(pid=pid, used_bytes=used, visible=True, command=command, user=user, ours=ours.get(pid, ""))


def _may_hold_gpu(pid: int) -> bool:
    """Return False if the process certainly holds no GPU; the driver's pid then belongs to another container."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return True
    return any(_NODE.fullmatch(_target(link)) for link in links)


def _target(link: Path) -> str:
    """Return the path of an open descriptor; empty if it was closed meanwhile."""
    try:
        return link.readlink().as_posix()
    except OSError:
        return ""
