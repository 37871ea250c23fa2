"""Reads NCCL's choices, and the settings that NCCL ignored, from its log (`NCCL_DEBUG=INFO`). Host side, pure.

The wording is NCCL's own (`src/graph/*.cc`, `src/transport/*.cc`, `src/misc/param.cc`, `src/enqueue.cc`) from 2.18 to
2.29; the logs that the tests read were recorded on two H200s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from remote.shared.messages.tune import CollectiveChoice

_VERSION = re.compile(r"NCCL version (\S+)")
_TRANSPORT = re.compile(r"Channel \d+(?:/\d+)? : \d+\[[^\]]*\] -> \d+\[[^\]]*\](?: \[\w+\])? via (\S+)")
_RING_PATH = re.compile(r"NCCL INFO Pattern 4, .*\btype (\w+)/\w+")
"""Pattern 4 is the ring. The path between GPUs stands before the slash, the path to the network after it."""
LINKS = {
    "NVL": "NVLink",
    "NVB": "NVLink through another GPU",
    "PIX": "a PCIe switch",
    "PXB": "PCIe switches",
    "PXN": "NVLink, then PCIe",
    "PHB": "PCIe through the CPU",
    "SYS": "PCIe through both CPUs",
}
_CHANNELS = re.compile(r"(\d+) coll channels")
_SET = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.+?)\.?$")
_TUNING = re.compile(r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
_REJECTED = re.compile(r"NCCL WARN (.*)$|NCCL INFO ((?:Invalid|Ignoring|Unsupported) NCCL_.*)$")
MOST_WARNINGS = 20


def read_choice(logs: Iterable[str]) -> CollectiveChoice:
    """Merge the ranks' logs into one choice; all ranks choose alike, so repeats are dropped."""
    choice = CollectiveChoice()
    transports: dict[str, None] = {}
    algorithms: dict[str, None] = {}
    warnings: dict[str, None] = {}
    for line in (line for log in logs for line in log.splitlines()):
        if found := _VERSION.search(line):
            choice.version = found[1]
        elif found := _TRANSPORT.search(line):
            transports[found[1]] = None
        elif found := _RING_PATH.search(line):
            choice.link = LINKS.get(found[1], found[1])
        elif found := _CHANNELS.search(line):
            choice.channels = int(found[1])
        elif found := _SET.search(line):
            choice.set_by_environment[found[1]] = found[2]
        elif found := _TUNING.search(line):
            algorithms[f"{found[1]} {found[2]} B: {found[3]} {found[4]}"] = None
        elif found := _REJECTED.search(line):
            warnings[found[1] or found[2]] = None
    choice.transports, choice.algorithms = list(transports), list(algorithms)
    choice.warnings = list(warnings)[:MOST_WARNINGS]
    return choice
