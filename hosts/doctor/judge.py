"""Findings from facts: what a host lacks, what it has, and what to do. Pure; tested by files of facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel

from hosts.console.text import size
from hosts.inventory.model import Host
from remote.attach.version import SUPPORTED_TEXT, supported
from remote.messages.facts import Facts

Level = Literal["green", "yellow", "red"]

MOST_SKEW_SECONDS = 5.0
LEAST_OPEN_FILES = 4096
LEAST_DISK_BYTES = 50 << 30
BUSY_SHARE = 0.02
SLOW_ROUND_TRIP_SECONDS = 0.3


class Finding(BaseModel):
    """One thing about a host."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


class Link(BaseModel):
    """The way between laptop and host, as one call measured it."""

    round_trip_seconds: float
    bytes_per_second: float
    """A lower bound: one small message on a connection that has just been opened."""
    skew_seconds: float
    """The host's clock minus the laptop's."""


def judge(facts: Facts, host: Host, link: Link) -> list[Finding]:
    """Everything worth saying, the worst first within the order of subjects."""
    return [
        *_python(facts),
        *_sglang(facts),
        *_gpus(facts, host),
        *_model(facts, host),
        *_disk(facts, host),
        *_ram_disk(facts, host),
        *_ports(facts),
        *_limits(facts),
        *_network(facts, link),
    ]


def _python(facts: Facts) -> Iterator[Finding]:
    needed = ("torch", "transformers", "safetensors", "psutil", "aiohttp", "orjson", "pydantic", "xxhash", "numpy")
    missing = [name for name in needed if name not in facts.packages]
    text = f"{facts.python_version} at {facts.python}"
    if missing:
        remedy = "Set `python` to the interpreter that SGLang is installed in, or install them there."
        yield Finding(level="red", subject="python", text=f"{text} lacks {', '.join(missing)}", remedy=remedy)
    else:
        yield Finding(level="green", subject="python", text=f"{text}, torch {facts.packages['torch']}")


def _sglang(facts: Facts) -> Iterator[Finding]:
    if facts.sglang is None:
        remedy = "Set `python` in the inventory to the interpreter that runs SGLang."
        yield Finding(level="red", subject="sglang", text=facts.sglang_problem.rstrip("."), remedy=remedy)
        return
    way = "as a plugin" if facts.sglang.has_plugins else "as a patch"
    text = f"{facts.sglang.version} at {facts.sglang.package}"
    if not supported(facts.sglang.version):
        remedy = f"Capture was tried over SGLang {SUPPORTED_TEXT}; attaching refuses what it does not know."
        yield Finding(level="yellow", subject="sglang", text=f"{text}, a version not tried", remedy=remedy)
    elif not facts.sglang.has_plugins and not facts.sglang.writable:
        remedy = "Run as a user who may write there, or install SGLang 0.5.14 or newer."
        yield Finding(level="red", subject="sglang", text=f"{text} needs the patch and is read-only", remedy=remedy)
    else:
        yield Finding(level="green", subject="sglang", text=f"{text}, capture attaches {way}")
    if facts.sglang.others:
        text = f"a second copy lies at {facts.sglang.others[0]} and is not the one used"
        yield Finding(level="yellow", subject="sglang", text=text, remedy="Remove the copy that is not meant.")


def _gpus(facts: Facts, host: Host) -> Iterator[Finding]:
    if host.gpus == 0 and not facts.gpus:
        yield Finding(level="green", subject="gpus", text="none, as the inventory says")
        return
    if len(facts.gpus) < host.gpus:
        text = f"{len(facts.gpus)} found where the inventory promises {host.gpus}"
        remedy = "Check the driver (nvidia-smi) and the container's GPU access, or correct `gpus`."
        yield Finding(level="red", subject="gpus", text=text, remedy=remedy)
    if not facts.gpus:
        return
    first = facts.gpus[0]
    links = f", linked by {', '.join(facts.topology)}" if facts.topology else ""
    text = f"{len(facts.gpus)} x {first.name} of {size(first.total_bytes)}{links}"
    text = f"{text}, driver {facts.driver} (CUDA {facts.cuda})"
    yield Finding(level="green", subject="gpus", text=text)
    busy = [gpu for gpu in facts.gpus if gpu.used_bytes > BUSY_SHARE * gpu.total_bytes]
    if busy:
        pids = sorted({pid for gpu in busy for pid in gpu.processes})
        who = f"pids {', '.join(map(str, pids))}" if pids else "processes that are not shown here"
        text = f"{len(busy)} in use ({size(sum(gpu.used_bytes for gpu in busy))}) by {who}"
        yield Finding(level="yellow", subject="gpus", text=text, remedy="inv free shows what they are.")


def _model(facts: Facts, host: Host) -> Iterator[Finding]:
    if facts.model is None:
        yield Finding(level="yellow", subject="model", text="none in the inventory", remedy="Set `model`.")
        return
    model = facts.model
    if model.problem:
        remedy = "Copy the model there, or correct `model`."
        yield Finding(level="red", subject="model", text=model.problem.rstrip("."), remedy=remedy)
        return
    outside = [layer for layer in host.layers if model.layers is not None and layer >= model.layers]
    if outside:
        text = f"layers {outside} are not below the model's {model.layers} blocks"
        remedy = "Layers are boundaries from 0 to n-1; the final state is added by itself."
        yield Finding(level="red", subject="model", text=text, remedy=remedy)
    text = f"{model.architecture}, {model.layers} blocks, hidden {model.hidden_size}"
    yield Finding(level="green", subject="model", text=text)


def _disk(facts: Facts, host: Host) -> Iterator[Finding]:
    free, least = facts.disk.free_bytes, int(host.min_free)
    text = f"{size(free)} free of {size(facts.disk.total_bytes)} for {facts.disk.path} ({facts.disk.kind or 'unknown'})"
    if free <= least:
        remedy = f"inv clean frees disk; extraction waits below min_free ({size(least)})."
        yield Finding(level="red", subject="disk", text=text, remedy=remedy)
    elif facts.disk.kind == "tmpfs":
        remedy = "A reboot loses it: put `workdir` on a disk."
        yield Finding(level="yellow", subject="disk", text=text, remedy=remedy)
    else:
        yield Finding(level="green", subject="disk", text=text)


def _ram_disk(facts: Facts, host: Host) -> Iterator[Finding]:
    disk, wanted = facts.ram_disk, int(host.dump_high_water)
    if disk is None:
        return
    available = f"{size(facts.memory_available_bytes)} of memory available"
    text = f"{size(disk.free_bytes)} free of {size(disk.total_bytes)} at {disk.path}, {available}"
    if disk.kind != "tmpfs":
        remedy = "Put `dump_dir` on a tmpfs such as /dev/shm: every state passes through it."
        yield Finding(level="yellow", subject="RAM disk", text=f"{text}, but it is {disk.kind}", remedy=remedy)
    elif disk.free_bytes < wanted:
        enlarge = "mount -o remount,size=… /dev/shm (a container: --shm-size)"
        remedy = f"Lower dump_high_water ({size(wanted)}), or enlarge it: {enlarge}."
        yield Finding(level="red", subject="RAM disk", text=text, remedy=remedy)
    elif facts.memory_available_bytes < wanted:
        remedy = f"Lower dump_high_water ({size(wanted)}): the states would push the server out of memory."
        yield Finding(level="yellow", subject="RAM disk", text=text, remedy=remedy)
    else:
        yield Finding(level="green", subject="RAM disk", text=text)


def _ports(facts: Facts) -> Iterator[Finding]:
    for port, who in facts.taken_ports.items():
        remedy = "That is fine for Roost's own server; inv free shows and ends others."
        yield Finding(level="yellow", subject="port", text=f"{port} is taken by {who}", remedy=remedy)


def _limits(facts: Facts) -> Iterator[Finding]:
    if 0 <= facts.open_files < LEAST_OPEN_FILES:
        remedy = f"Raise it to {LEAST_OPEN_FILES} or more (ulimit -n, limits.conf)."
        yield Finding(level="yellow", subject="limits", text=f"{facts.open_files} open files at most", remedy=remedy)
    start = facts.max_startups.split(":")[0]
    if start.isdigit() and int(start) < 10:
        remedy = "Roost opens one control connection and a few for bulk; raise MaxStartups in sshd_config."
        yield Finding(
            level="yellow", subject="limits", text=f"sshd's MaxStartups is {facts.max_startups}", remedy=remedy
        )


def _network(facts: Facts, link: Link) -> Iterator[Finding]:
    text = f"round trip {link.round_trip_seconds * 1e3:.0f} ms, at least {size(link.bytes_per_second)}/s"
    slow = link.round_trip_seconds > SLOW_ROUND_TRIP_SECONDS
    remedy = "Pull with more streams (--streams)." if slow else ""
    yield Finding(level="yellow" if slow else "green", subject="network", text=text, remedy=remedy)
    if abs(link.skew_seconds) > MOST_SKEW_SECONDS:
        text = f"the host's clock is {link.skew_seconds:+.0f} s off this one"
        yield Finding(level="yellow", subject="clock", text=text, remedy="Start its time service (chrony, ntpd).")
    if not facts.cpu_has_aes:
        text = "no AES instructions: bulk transfers will use another cipher"
        yield Finding(level="yellow", subject="network", text=text, remedy="Nothing to do; expect lower speed.")
