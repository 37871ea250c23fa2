"""The practice fleet's `inventory.yaml`, written from the running hosts. Laptop's side, called by `fleet.py`.

It is an ordinary inventory: every command works on it as on real hosts.
"""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from pathlib import Path

from hosts.inventory.document import text_of
from hosts.practice.paths import PracticePaths
from hosts.practice.ports import ADDRESS
from hosts.practice.serving import CONTEXT_LENGTH, ENVIRONMENT, FLAGS, MAX_RUNNING_REQUESTS
from remote.shared.files import write_whole

LAYERS = [1, 3, 5]
"""Boundaries of the six-layer tiny model: with the final state four slots, as on a real host."""
WHY = {
    "device": "the practice hosts have no GPU",
    "dtype": "SGLang's auto would turn the float32 checkpoint into float16",
    "attention-backend": "attention in plain PyTorch, which every CPU runs",
    "max-total-tokens": "room for the KV cache of one tiny server; all hosts share this machine's memory",
    "chunked-prefill-size": "long prompts are prefilled in chunks, as on a real host",
    "disable-cuda-graph": "there are no CUDA graphs without a GPU",
}
RADIX_WHY = "a cached prefix is never computed, so its rows would be missing"


@dataclass(frozen=True)
class HostFacts:
    """The settings of one practice host in the inventory."""

    name: str
    ssh_port: int
    server_port: int
    client_key: Path
    dump_dir: Path


def write_inventory(paths: PracticePaths, hosts: list[HostFacts], model: Path) -> Path:
    """Write `.practice/inventory.yaml` for `hosts`, whose servers serve `model`; return its path."""
    text = text_of(inventory_of(paths, hosts, model))
    note = (
        "# The practice fleet, written by `inv practice up`. Use it: export ROOST_INVENTORY=.practice/inventory.yaml\n"
    )
    write_whole(paths.inventory, (note + text).encode())
    return paths.inventory


def inventory_of(paths: PracticePaths, hosts: list[HostFacts], model: Path) -> dict[str, object]:
    """Return the practice inventory as a mapping; without hosts, only what every practice machine has in common."""
    return {
        "defaults": {
            "address": ADDRESS,
            "user": getpass.getuser(),
            "ssh_config": str(paths.ssh_config),
            "known_hosts": str(paths.known_hosts),
            "python": str(paths.engine_python),
            "workdir": "~/roost",
            "model": str(model),
            "context_length": CONTEXT_LENGTH,
            "gpus": 0,
            "tp": 1,
            "max_running_requests": MAX_RUNNING_REQUESTS,
            "layers": LAYERS,
            "dump_high_water": "256MiB",
            "pinned_memory": "64MiB",
            "min_free": "1GiB",
            "parity_rate": 0.05,
            # A guess for two busy cores and the whole fleet; an idle machine reaches several times that.
            "tokens_per_second": 300,
            "ready_timeout": 300,
            # All hosts share this machine. With more threads than cores, threads spin while they wait for each other.
            "env": {**ENVIRONMENT, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // max(1, len(hosts))))},
        },
        "modes": {
            "serve": {"flags": {**FLAGS, "disable-cuda-graph": True}, "why": {**WHY}},
            "extract": {
                "capture": True,
                "flags": {**FLAGS, "disable-cuda-graph": True, "disable-radix-cache": True},
                "why": {**WHY, "disable-radix-cache": RADIX_WHY},
            },
        },
        "local": {"python": str(paths.engine_python), "workdir": str(paths.local_workdir)},
        "hosts": {
            host.name: {
                "ssh_port": host.ssh_port,
                "identity_file": str(host.client_key),
                "port": host.server_port,
                "dump_dir": str(host.dump_dir),
            }
            for host in hosts
        },
    }
