"""Identifies processes beyond doubt: by pid and create time, by session, by an inherited mark.

Runs on the host, called by the rest of `remote/servers`. Reads the process table; only `deliver` changes
anything: it sends a signal after checking that the pid still belongs to the same process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from remote.shared.messages.server import ProcessRef

MARK = "ROOST_SERVER"
"""A variable (`FOLDER#TOKEN`) in the environment of a server's processes; it survives `setsid` and reparenting.

The token differs with every start, so that a container with the same folder path is not mistaken for this server.
"""

CREATE_TIME_SLACK_SECONDS = 1.0
"""`create_time` is boot time plus ticks, and the boot time that the kernel reports moves when NTP slews the clock.
Used only if a record has no `start`, which is exact."""


def reference(pid: int) -> ProcessRef:
    """Describe the running process `pid`; raises psutil.NoSuchProcess if there is none."""
    created_at = psutil.Process(pid).create_time()
    try:
        group, session = os.getpgid(pid), os.getsid(pid)
        return ProcessRef(pid=pid, created_at=created_at, start=_start(pid), group=group, session=session)
    except ProcessLookupError as error:
        raise psutil.NoSuchProcess(pid) from error


def session_leader(pid: int) -> ProcessRef:
    """Describe our child `pid`, started just now in its own session, even if it has ended and been reaped."""
    try:
        return reference(pid)
    except psutil.NoSuchProcess:
        return ProcessRef(pid=pid, created_at=time.time(), group=pid, session=pid)


def find(ref: ProcessRef | None) -> psutil.Process | None:
    """Return the process that `ref` describes; None if it has ended, is a zombie, or another process has its pid."""
    if ref is None:
        return None
    try:
        process = psutil.Process(ref.pid)
        if not _began_as(process, ref):
            return None
        return None if is_zombie(process) else process
    except psutil.NoSuchProcess:
        return None


def is_zombie(process: psutil.Process) -> bool:
    """Return whether the process is a zombie, which has ended and uses no resources."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def is_reused(ref: ProcessRef) -> bool:
    """Return whether `ref`'s pid now belongs to a later process, so that the session number proves nothing."""
    try:
        return not _began_as(psutil.Process(ref.pid), ref)
    except psutil.NoSuchProcess:
        return False


def members(ref: ProcessRef, mark: str) -> list[psutil.Process]:
    """Return every running process of a server: its leader, its session, its descendants, and processes with `mark`.

    Does not need the leader, so that children which were reparented to PID 1 are included.
    """
    found = {process.pid: process for process in _by_session(ref, mark)}
    found.update((process.pid, process) for process in _by_mark(mark))
    leader = find(ref)
    if leader is not None:
        found[leader.pid] = leader
    for process in list(found.values()):
        found.update((child.pid, child) for child in _children(process))
    protected = untouchable()
    return [process for pid, process in sorted(found.items()) if pid not in protected and not is_zombie(process)]


def untouchable() -> set[int]:
    """Return the pids that no command may end: this process, its ancestors, and PID 1."""
    return {1, os.getpid(), *(parent.pid for parent in psutil.Process().parents())}


def deliver(processes: Iterable[psutil.Process], number: signal.Signals) -> list[psutil.Process]:
    """Send a signal to each process, except this one and its ancestors; return those that this user may not signal.

    psutil checks the create time first, so that a process which has reused the pid gets no signal.
    """
    refused = []
    protected = untouchable()
    for process in processes:
        if process.pid in protected:
            continue
        try:
            process.send_signal(number)
        except psutil.AccessDenied:
            refused.append(process)
        except psutil.NoSuchProcess:
            continue
    return refused


def mark_of(process: psutil.Process) -> str:
    """Return the mark that `process` inherited, or "" if it has none or its environment cannot be read."""
    try:
        return process.environ().get(MARK, "")
    except (psutil.Error, OSError):
        return ""


def _by_session(ref: ProcessRef, mark: str) -> Iterator[psutil.Process]:
    if is_reused(ref):
        return
    leader_lives = find(ref) is not None
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) != ref.session:
                continue
            if _is_older(process, ref):
                continue
            if leader_lives or _looks_ours(process, mark):
                yield process
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue


def _start(pid: int) -> str:
    """Return the kernel's start time of `pid`; "" if it has ended or this is not Linux.

    The clock can be set, by hours after a suspended VM or a lost NTP server, and every `create_time` moves with it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return f"{boot} {int(fields[19])}"


def _began_as(process: psutil.Process, ref: ProcessRef) -> bool:
    """Return whether `process` began at the same time as the process that `ref` describes."""
    if ref.start and (now := _start(process.pid)):
        return now == ref.start
    return bool(abs(process.create_time() - ref.created_at) <= CREATE_TIME_SLACK_SECONDS)


def _is_older(process: psutil.Process, ref: ProcessRef) -> bool:
    """Return whether `process` began before the process that `ref` describes, and so cannot belong to it."""
    if ref.start and (now := _start(process.pid)):
        (boot, ticks), (own_boot, own_ticks) = now.split(), ref.start.split()
        return boot == own_boot and int(ticks) < int(own_ticks)
    return bool(process.create_time() < ref.created_at - CREATE_TIME_SLACK_SECONDS)


def _looks_ours(process: psutil.Process, mark: str) -> bool:
    """Guard against a session number that was reused after our leader had ended, as after a reboot.

    SGLang's ranks overwrite their environment with their title (`sglang::scheduler_TP0`): no mark, only a name.
    """
    return (bool(mark) and mark_of(process) == mark) or process.name().startswith("sglang::")


def _by_mark(mark: str) -> Iterator[psutil.Process]:
    """Return False for a record without a mark, because nearly every process has no mark either."""
    return (process for process in psutil.process_iter() if mark and mark_of(process) == mark)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
