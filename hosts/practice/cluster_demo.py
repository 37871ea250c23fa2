"""The common part of `make demo-slurm` and `make demo-ray`: an extraction on three nodes. One node dies half way.

As in `make demo`, each step is a command that a user types, and real SGLang serves a tiny model on each node. The
scheduler and its jobs are in namespaces of this program and end with it. Laptop's side; writes only `.practice/`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table

from hosts.errors import HostError
from hosts.inventory.document import text_of
from hosts.practice import corpus, fleet, namespaces
from hosts.practice.demo import Demo
from hosts.practice.inventory import inventory_of
from hosts.practice.models import tiny_model
from hosts.practice.paths import PracticePaths
from remote.shared.files import write_whole
from remote.shared.paths import ROWS_FILE

NODES = 3
RECORDS = 300
LONGEST_BYTES = 120
"""Longest message. Messages are short because three servers share this machine's cores."""
CHUNK_TOKENS = 600
LEASE_SECONDS = 60
READY_SECONDS = 900
STEP_SECONDS = 1800.0


class Lab(Protocol):
    """A practice cluster."""

    @property
    def names(self) -> list[str]:
        """The names of the nodes."""

    def start(self) -> None:
        """Start the cluster, and return when it accepts jobs."""

    def settings(self) -> dict[str, object]:
        """Return the cluster's keys in an inventory."""

    def version(self) -> str:
        """Return the scheduler's name and version."""

    def is_idle(self) -> bool:
        """Return whether the scheduler has no more jobs."""

    def lose_node(self, name: str) -> None:
        """Kill everything on a node."""

    def start_node(self, name: str) -> None:
        """Start a node's daemon again."""

    def replicas(self) -> Mapping[str, object]:
        """Return the replica's process for each node that has a replica."""


class ClusterDemo(Demo):
    """One demo on a practice cluster of one engine."""

    def __init__(
        self, paths: PracticePaths, console: Console, engine: str, lab: Callable[[Path], Lab], obstacle: str
    ) -> None:
        super().__init__(paths, console)
        self.engine, self.obstacle = engine, obstacle
        self.cluster = f"practice-{engine}"
        self.site = paths.folder / engine
        self.lab = lab(self.site / "lab")

    @property
    def inventory(self) -> Path:
        return self.site / "inventory.yaml"

    @property
    def shared(self) -> Path:
        """The folder that the login host and the nodes share."""
        return self.site / "shared"

    @property
    def left(self) -> str:
        return f"The logs of the scheduler and of the jobs are in {self.site}."

    @property
    def stays(self) -> str:
        where = self.short(self.destination)
        return f"The scheduler and its jobs end with the demo; the pulled records stay in {where}"

    def begin(self) -> None:
        """Enter namespaces, start the cluster, and write the inventory and the sample text."""
        fleet.build_engine(self.paths.root)
        why = self.obstacle or namespaces.enter(f"hosts.practice.{self.engine}.demo", [str(self.paths.root)])
        if why:
            raise HostError(f"The practice cluster cannot run here: {why}")
        shutil.rmtree(self.site, ignore_errors=True)
        self.site.mkdir(parents=True)
        self.lab.start()
        self.console.print(f"{self.cluster}: {self.lab.version()}; nodes {', '.join(self.lab.names)}")
        content = inventory_of(self.paths, [], tiny_model(self.paths.root))
        cluster = {
            "login": "local", "workdir": str(self.shared), "scratch": str(self.site / "scratch"),
            "chunk_tokens": CHUNK_TOKENS, "lease": LEASE_SECONDS, "ready_timeout": READY_SECONDS,
            **self.lab.settings(), **self.settings(),
        }  # fmt: skip
        write_whole(self.inventory, text_of({**content, "clusters": {self.cluster: cluster}}).encode())
        lines = [json.dumps({"messages": cut}) for cut in map(_short_talk, corpus.conversations()[:RECORDS])]
        write_whole(self.site / "conversations.jsonl", ("\n".join(lines) + "\n").encode())

    def settings(self) -> dict[str, object]:
        """Return further keys of the cluster in the inventory, for real SGLang on CPU."""
        return {}

    def type_everything(self) -> None:
        here, there = ["--host", self.cluster, "--run", self.run], ["--cluster", self.cluster, "--run", self.run]
        conversations = self.short(self.site / "conversations.jsonl")
        self.type("prepare", "--input", conversations, "--out", self.short(self.dataset))
        self.type("plan", *here, "--dataset", self.short(self.dataset))
        self.type("extract", *there)
        self.type("status", *there)
        self._await(lambda: self.published() >= RECORDS // 3, "a third of the records")
        self._lose_a_node()
        self.type("status", *there)
        self.type("pull", *here, "--to", self.short(self.destination), "--follow")
        self._await(self.lab.is_idle, "the end of the jobs")
        self.type("status", *there)
        self.type("verify", "--folder", self.short(self.destination))

    def published(self) -> int:
        """Return the number of records in published chunks."""
        return sum(self.holders().values())

    def holders(self) -> Counter[str]:
        """Return the number of records that each attempt of each replica published."""
        found: Counter[str] = Counter()
        for path in (self.shared / "runs" / self.run / "queue" / "published").glob(f"*/[0-9]*/{ROWS_FILE}"):
            told = json.loads(path.read_text())
            found[told["holder"]] += len(told["rows"])
        return found

    def summary(self) -> Table:
        manifest = json.loads((self.dataset / "manifest.json").read_text())
        shards = list((self.destination / "hidden_states").glob("hs_*.safetensors"))
        table = Table(box=None, show_header=False, pad_edge=False, title=f"\n{self.run}", title_justify="left")
        table.add_row("records", f"{len(shards):,} of {manifest['records']:,}")
        table.add_row("tokens", f"{manifest['tokens']:,}")
        table.add_row("bytes", f"{sum(shard.stat().st_size for shard in shards):,}")
        for holder, records in sorted(self.holders().items()):
            replica, _, attempt = holder.rpartition(".")
            table.add_row(f"replica {replica}, attempt {int(attempt) + 1}", f"{records:,} records")
        table.add_row("commands", f"{sum(step.seconds for step in self.steps):.0f} s")
        return table

    def _lose_a_node(self) -> None:
        """Kill every process on a node that has a replica, then start the node's daemon again."""
        node = min(self.lab.replicas())
        said = f"\nThe node {node} dies: the scheduler's daemon, the replica and SGLang are killed."
        self.console.print(said, style="bold red")
        self.lab.lose_node(node)
        self.lab.start_node(node)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STEP_SECONDS
        began = time.monotonic()
        while not condition():
            if time.monotonic() > deadline:
                raise HostError(f"{self.cluster} did not reach {what} within {STEP_SECONDS:.0f} s.", remedy=self.left)
            time.sleep(0.2)
        self.console.print(f"\nWaited {time.monotonic() - began:.0f} s for {what}.")


def _short_talk(messages: corpus.Conversation) -> corpus.Conversation:
    """Return the first question and its answer, cut to a length that a CPU processes quickly."""
    asked = [message for message in messages if message["role"] != "system"][:2]
    return [{**message, "content": message["content"][:LONGEST_BYTES]} for message in asked]
