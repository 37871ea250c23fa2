"""Says why a server ended, from its exit code and its log: one sentence with numbers, and which setting to change.

Runs on the host, called by the supervisor and by `serve`. Reads the log, the port's holder and the kernel's count of
out-of-memory kills; changes nothing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from remote.servers.lifecycle import logfile
from remote.servers.lifecycle.cause_table import CAUSES, Cause
from remote.servers.probing.holders import port_holders
from remote.shared.messages.server import GpuId

LINES = 15
VMSTAT = Path("/proc/vmstat")
_RANK = re.compile(r"(?:\[\d{4}-\d\d-\d\d [\d:]+[^\]]*?\bTP(\d+)[^\]]*\])|(?:\[rank(\d+)\])", re.MULTILINE)
_ERROR = re.compile(
    r"^(?:\[[^\]]*\] )?(?P<error>(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt)(?:: .+)?)$", re.MULTILINE
)
_SHARER = re.compile(r"Process (\d+) has ([\d.]+ \w+) memory in use")
_NOISE = re.compile(r"Ignore import error when loading|UserWarning|warnings\.warn|server_args=|^\s*\^+$")


@dataclass(frozen=True)
class End:
    """What is known about a server's end apart from its log."""

    exit_code: int | None
    command: list[str]
    oom_kills: int = 0
    """How many processes the kernel killed for lack of memory on this host during the server's life."""
    dead_rank: str = ""
    """A sentence without its full stop on a rank that died while the leader kept running."""
    gpus: Sequence[GpuId] = ()
    """The GPUs of the host that this server used; its log numbers them from 0."""


def explain(log: Path, end: End) -> str:
    """Return why the server ended: the first matching row of the table, else the last exception, else the exit code."""
    text = logfile.tail(log)
    found = match(text)
    if found is not None:
        cause, matched = found
        fields = _fields(matched, text, end)
        sentence = cause.sentence.format_map(fields)
        return f"{sentence[0].upper()}{sentence[1:]}. {cause.remedy.format_map(fields)}"
    if end.dead_rank:
        return f"{end.dead_rank}{_oom(end) if 'SIGKILL' in end.dead_rank else ''}."
    if end.exit_code == -signal.SIGKILL:
        return f"It was killed by SIGKILL{_oom(end)}."
    errors = list(_ERROR.finditer(text))
    if errors:
        return f"It ended {describe_exit(end.exit_code)}: {errors[-1]['error']}."
    said = last_lines(text, 1)
    return f"It ended {describe_exit(end.exit_code)}." + (f" Its last words: {said[0]}" if said else "")


def match(text: str) -> tuple[Cause, re.Match[str]] | None:
    """Return the first row of the table whose pattern the log contains, and the match."""
    for cause in CAUSES:
        found = cause.search(text)
        if found is not None:
            return cause, found
    return None


def relevant_lines(log: Path, count: int = LINES) -> list[str]:
    """Return the log lines up to the cause or the last exception, without SGLang's import noise."""
    text = logfile.tail(log)
    found = match(text)
    errors = list(_ERROR.finditer(text))
    end = found[1].end() if found else errors[-1].end() if errors else len(text)
    upto = text[: text.find("\n", end) if "\n" in text[end:] else len(text)]
    return [line for line in last_lines(upto, 20 * count) if not _NOISE.search(line)][-count:]


def describe_exit(code: int | None) -> str:
    """Return `with exit code 1`, `by SIGTERM` or the like."""
    if code is None:
        return "and left no exit code"
    if code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"


def last_lines(text: str, count: int) -> list[str]:
    """Return the last `count` lines that are not blank."""
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since boot, or 0 if that is unknown.

    Kills by the limit of a cgroup are included.
    """
    try:
        found = re.search(r"^oom_kill (\d+)$", VMSTAT.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) if found else 0


def _fields(matched: re.Match[str], text: str, end: End) -> dict[str, str]:
    """Return the groups of the pattern and the further values that a row's sentence may name."""
    groups = {name: value for name, value in matched.groupdict().items() if value is not None}
    rank = groups.get("rank") or _rank_before(text, matched.start())
    port = groups.get("port") or groups.get("port2") or groups.get("port3") or ""
    return {
        **groups,
        "on_gpu": _host_gpu(groups.get("gpu", ""), end.gpus),
        "on_rank": f" on rank {rank}" if rank else "",
        "fraction": _fraction(groups.get("now"), end.command),
        "sharers": _sharers(groups.get("rest", "")),
        "last_error": f" ({groups['last'].strip()})" if groups.get("last", "").strip() else "",
        "at_path": f" at {groups['path']}" if "path" in groups else "",
        "taken_port": port,
        "by_holder": _holder(port),
        "killed": f"rank {rank}" if "rank" in groups else f"the process {groups.get('name', '')}",
        "oom": _oom(end),
    }


def _rank_before(text: str, position: int) -> str:
    """Return the rank whose log line or traceback the match belongs to, or ""."""
    found = [first or second for first, second in _RANK.findall(text, 0, text.find("\n", position) + 1 or len(text))]
    return found[-1] if found else ""


def _host_gpu(named: str, gpus: Sequence[GpuId]) -> str:
    """Return the number that the GPU has on the host; the server's log counts only the GPUs it was given."""
    place = int(named) if named else len(gpus)
    return str(gpus[place]) if place < len(gpus) else named


def _fraction(now: str | None, command: list[str]) -> str:
    for argument, value in pairwise([*command, ""]):
        name, _, joined = argument.partition("=")
        if name == "--mem-fraction-static":
            now = now or joined or value
    return f" (now {now})" if now else ""


def _sharers(rest: str) -> str:
    others = [f"pid {pid} has {size}" for pid, size in _SHARER.findall(rest)]
    return f" ({', '.join(others)} of it)" if others else ""


def _holder(port: str) -> str:
    holders = port_holders(int(port)) if port else []
    return f" by {holders[0].describe()}" if holders else ""


def _oom(end: End) -> str:
    if end.oom_kills:
        return f": the kernel's out-of-memory killer ended {end.oom_kills} process(es) on this host meanwhile"
    return ", and the kernel counted no out-of-memory kill"
