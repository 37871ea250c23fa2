"""Finds the processes in a server's way on this host: those that hold its GPUs, its port or its dump directory.

Runs on the host, called by `stop` (and `free`). Read-only. Never names this process, its ancestors, an sshd, Roost's
own commands, a log follower or the driver's daemons: nobody may end those.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

import psutil

from remote.servers.lifecycle import records
from remote.servers.probing.gpu import Gpu, indices
from remote.servers.probing.handles import holders_of
from remote.servers.probing.holders import Holder, owner, port_holders
from remote.servers.probing.sglang_process import is_sglang
from remote.shared.errors import HostError
from remote.shared.messages.server import Needs
from remote.shared.paths import ServerPaths
from remote.shared.processes import find, mark_of, untouchable

FOLLOWERS = {"tail", "less", "more", "journalctl", "multitail", "lnav", "vi", "vim", "nano", "grep", "cat", "rsync"}
DAEMONS = {
    "sshd",
    "sshd-session",
    "systemd",
    "dockerd",
    "containerd",
    "nvidia-persistenced",
    "nv-fabricmanager",
    "nv-hostengine",
    "dcgm-exporter",
    "nvidia-smi",
}
"""Daemons of the driver and the machine: they always hold device nodes and take almost no GPU memory."""


def find_obstacles(needs: list[Needs], gpus: list[Gpu], *, everything: bool) -> list[Holder]:
    """Return the processes in the way of `needs`, by pid, with all reasons; `everything` adds all SGLang processes."""
    found: dict[int, Holder] = {}
    for holder in _all(needs, gpus, everything):
        if _may_be_named(holder.process):
            found.setdefault(holder.process.pid, Holder(holder.process)).holds += holder.holds
    for supervisor in _supervisors(list(found.values())):
        found.setdefault(supervisor.process.pid, supervisor)
    return [found[pid] for pid in sorted(found)]


def _all(needs: list[Needs], gpus: list[Gpu], everything: bool) -> Iterator[Holder]:
    for port in sorted({need.port for need in needs}):
        yield from port_holders(port)
    wanted = indices((one for need in needs for one in need.gpus), gpus)
    yield from _gpu_holders(wanted, gpus)
    yield from _folder_holders({need.dump_dir for need in needs if need.dump_dir is not None})
    if everything:
        yield from (Holder(process, ["SGLang server"]) for process in psutil.process_iter() if is_sglang(process))


def _gpu_holders(wanted: set[int], gpus: list[Gpu]) -> Iterator[Holder]:
    """Yield the processes that hold the wanted GPUs, by open device nodes and by the driver's charges.

    CUDA and NVML open the nodes of all GPUs, so a process whose session is charged only on other GPUs is not in the
    way.
    """
    ours = [gpu for gpu in gpus if gpu.index in wanted]
    here = _charged(ours)
    elsewhere = _charged(gpu for gpu in gpus if gpu.index not in wanted) - here
    for process, held in holders_of({gpu.node for gpu in ours}) if ours else ():
        if (_session(process) or process.pid) not in elsewhere:
            yield Holder(process, sorted(held))
    for gpu in ours:
        for process in _existing(gpu.processes):
            yield Holder(process, [gpu.node])


def _charged(gpus: Iterable[Gpu]) -> set[int]:
    """Return the sessions of the processes that the driver charges memory of these GPUs to.

    Inside a container, a session that was opened outside of the PID namespace has no id; the process and its ancestors
    then stand for the session.
    """
    found: set[int] = set()
    for process in (process for gpu in gpus for process in _existing(gpu.processes)):
        if session := _session(process):
            found.add(session)
        else:
            found |= {process.pid, *(parent.pid for parent in _parents(process))}
    return found


def _session(process: psutil.Process) -> int:
    """Return the process's session; 0 if it was opened outside of this PID namespace or the process has ended."""
    try:
        return os.getsid(process.pid)
    except OSError:
        return 0


def _parents(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.parents()
    except psutil.Error:
        return []


def _folder_holders(folders: Iterable[str]) -> Iterator[Holder]:
    real = tuple(sorted(str(Path(folder).resolve()) for folder in folders))
    for process, held in holders_of(set(), real) if real else ():
        folder = next(folder for folder in real if any(path.startswith(folder) for path in held))
        yield Holder(process, [f"dump directory {folder}"])


def _supervisors(found: list[Holder]) -> Iterator[Holder]:
    """Yield the supervisors of other workdirs' servers among `found`: a supervisor would start its server again.

    A process can carry any mark that its user likes, and a record can name any pid. A supervisor therefore counts only
    if the marked process, the folder that the mark names, the record and the supervisor all have the same owner.
    """
    for mark, user in {(mark_of(holder.process), _user_id(holder.process)) for holder in found}:
        if not mark or user is None:
            continue
        paths = ServerPaths(Path(mark.partition("#")[0]))
        try:
            state = records.load(paths, owner=user) if paths.root.lstat().st_uid == user else None
        except (HostError, OSError):
            continue
        supervisor = find(state.supervisor) if state is not None and state.mark == mark else None
        if supervisor is not None and _user_id(supervisor) == user:
            yield Holder(supervisor, ["supervises it"], owner(mark))


def _user_id(process: psutil.Process) -> int | None:
    """Return the user that a process runs as; None if it has ended or has changed its user."""
    try:
        ids = process.uids()
    except psutil.Error:
        return None
    return int(ids.real) if ids.real == ids.effective == ids.saved else None


def _existing(pids: Iterable[int]) -> Iterator[psutil.Process]:
    """Yield the processes that exist; inside a container the driver may name pids of the outer host."""
    for pid in pids:
        try:
            process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            continue
        yield process


def _may_be_named(process: psutil.Process) -> bool:
    if process.pid in untouchable():
        return False
    try:
        argv, name = process.cmdline(), process.name()
    except psutil.Error:
        return False
    program = PurePath(argv[0]).name if argv else name
    if {program, name} & (FOLLOWERS | DAEMONS) or name.startswith("sshd"):
        return False
    return not _is_roost_command(argv)


def _is_roost_command(argv: list[str]) -> bool:
    """Return whether this is `python -m remote VERB`: an extractor, a supervisor or another operator's command."""
    return "-m" in argv and argv[argv.index("-m") + 1 : argv.index("-m") + 2] == ["remote"]
