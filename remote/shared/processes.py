"""Processes that cannot be mistaken for others: by pid and create time, by session, by an inherited mark.

Runs on the host, called by the rest of `remote/servers`. Reads the process table; only `deliver` touches anything,
and it sends a signal only after it has checked that the pid still is the process that was meant.
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
"""In the environment of everything a server starts, `FOLDER#TOKEN`: kept across `setsid` and reparenting.

The token differs with every start, so that a container's server whose folder has the same path is not taken for ours.
"""

CREATE_TIME_SLACK_SECONDS = 1.0
"""`create_time` is boot time plus ticks, and the boot time that the kernel reports moves when NTP slews the clock.
Counts only where a record has no `start`, which is exact."""


def reference(pid: int) -> ProcessRef:
    """Describe the running process `pid`; raises psutil.NoSuchProcess where there is none."""
    created_at = psutil.Process(pid).create_time()
    try:
        group, session = os.getpgid(pid), os.getsid(pid)
        return ProcessRef(pid=pid, created_at=created_at, start=_start(pid), group=group, session=session)
    except ProcessLookupError as error:
        raise psutil.NoSuchProcess(pid) from error


def session_leader(pid: int) -> ProcessRef:
    """Describe our child `pid`, started in a session of its own just now: also where it has ended and been reaped."""
    try:
        return reference(pid)
    except psutil.NoSuchProcess:
        return ProcessRef(pid=pid, created_at=time.time(), group=pid, session=pid)


def find(ref: ProcessRef | None) -> psutil.Process | None:
    """The process that `ref` describes if it lives; None if it ended, is a zombie, or its pid is another's now."""
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
    """Whether it has ended and only waits for its parent to read its exit code: it holds nothing any more."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def is_reused(ref: ProcessRef) -> bool:
    """Whether `ref`'s pid belongs to a later process now, so that its session number proves nothing."""
    try:
        return not _began_as(psutil.Process(ref.pid), ref)
    except psutil.NoSuchProcess:
        return False


def members(ref: ProcessRef, mark: str) -> list[psutil.Process]:
    """Every living process of a server: its leader, its session, its descendants and what carries `mark`.

    Found whether or not the leader still lives, so that children which reparented to PID 1 are included.
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
    """Pids that no command may end: this process, its ancestors, and PID 1."""
    return {1, os.getpid(), *(parent.pid for parent in psutil.Process().parents())}


def deliver(processes: Iterable[psutil.Process], number: signal.Signals) -> list[psutil.Process]:
    """Send a signal to each, never to ourselves or an ancestor; returns those that this user may not signal.

    psutil checks the create time first, so that a pid which was given again in between is left alone.
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
    """The mark that `process` inherited, or "" where it has none or its environment cannot be read."""
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
    """When `pid` began, as the kernel counts it; "" where it has ended or this is no Linux.

    The clock can be set, by hours after a suspended VM or a lost NTP server, and every `create_time` moves with it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return f"{boot} {int(fields[19])}"


def _began_as(process: psutil.Process, ref: ProcessRef) -> bool:
    """Whether `process` began when the one that `ref` describes did."""
    if ref.start and (now := _start(process.pid)):
        return now == ref.start
    return bool(abs(process.create_time() - ref.created_at) <= CREATE_TIME_SLACK_SECONDS)


def _is_older(process: psutil.Process, ref: ProcessRef) -> bool:
    """Whether `process` began before the one that `ref` describes, so that it cannot be that one's doing."""
    if ref.start and (now := _start(process.pid)):
        (boot, ticks), (own_boot, own_ticks) = now.split(), ref.start.split()
        return boot == own_boot and int(ticks) < int(own_ticks)
    return bool(process.create_time() < ref.created_at - CREATE_TIME_SLACK_SECONDS)


def _looks_ours(process: psutil.Process, mark: str) -> bool:
    """Guard against a session number that was given again (after a reboot, say) once our leader had ended.

    SGLang's ranks overwrite their environment with their title (`sglang::scheduler_TP0`): no mark, but a name.
    """
    return (bool(mark) and mark_of(process) == mark) or process.name().startswith("sglang::")


def _by_mark(mark: str) -> Iterator[psutil.Process]:
    """A record without a mark claims nobody: a process without one has "" too, and that is nearly all of them."""
    return (process for process in psutil.process_iter() if mark and mark_of(process) == mark)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
