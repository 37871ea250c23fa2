"""A run on a practice cluster with one fault. It passes if every record is delivered once, bit for bit as it was made.

The verdict uses none of Roost's code: the delivered tensors are compared with those that the stand-in computes from the
tokens.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from hosts.commands import clusters
from hosts.commands.plan import plan
from hosts.commands.prepare import prepare
from hosts.commands.pull import pull
from hosts.commands.status import status
from hosts.fleet import Fleet
from hosts.inventory.load import load_inventory
from hosts.practice.models import tiny_model
from hosts.practice.nodes import until
from hosts.practice.paths import PracticePaths
from remote.shared.messages.dataset import PrepareRequest
from remote.shared.messages.transfer import Wish
from tests.faults.box import CLONE
from tests.remote.extract.standin import Config, states_of

RECORDS = 90
LENGTHS = [8 + number * 7 % 50 for number in range(RECORDS)]
DELAY_SECONDS = 0.3
CHUNK_TOKENS = 150
CLUSTER, RUN = "lab", "trial"
SERVE = CLONE / "tests" / "remote" / "replica" / "serve_standin.py"
PATIENCE_SECONDS = 240.0


class Lab(Protocol):
    """A practice cluster of any engine, in namespaces of this process."""

    def start(self) -> None:
        """Start the cluster, and return when it accepts jobs."""

    def settings(self) -> dict[str, object]:
        """Return the cluster's keys in the inventory."""

    def is_idle(self) -> bool:
        """Return whether the scheduler has no more jobs, neither waiting nor running."""

    def logs(self) -> list[Path]:
        """Return the logs of the daemons, which are printed if a trial failed."""


LabT = TypeVar("LabT", bound=Lab)


@dataclass
class Site(Generic[LabT]):
    """A laptop, which is also the login host, and the cluster."""

    root: Path
    lab: LabT
    delay_seconds: float = DELAY_SECONDS
    """The time that a stand-in takes for a record."""
    hidden: int = 0
    job: str = ""
    """The newest submitted job."""
    tokens: list[list[int]] = field(default_factory=list)
    """The tokens of every record, by its index in the dataset."""

    @property
    def shared(self) -> Path:
        return self.root / "shared folder"

    @property
    def run(self) -> Path:
        return self.shared / "runs" / RUN

    def fleet(self) -> Fleet:
        inventory = load_inventory(self.root / "inventory.yaml")
        return Fleet(inventory, [inventory.cluster_hosts[CLUSTER]])

    def inv(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Type `inv …`."""
        argv = [sys.executable, "-m", "invoke", *words, "--inventory", str(self.root / "inventory.yaml")]
        return subprocess.run(argv, cwd=CLONE, capture_output=True, text=True, check=False, timeout=120)

    def published(self) -> int:
        return len(list((self.run / "queue" / "published").glob("*/[0-9]*")))

    def write_inventory(self, **settings: object) -> Path:
        """Write the inventory with these further keys of the cluster; return the model's path."""
        model = tiny_model(CLONE, "deepseek_v3", layers=6, dtype="float32")
        self.hidden = json.loads((model / "config.json").read_text())["hidden_size"]
        python = str(PracticePaths(CLONE).engine_python)
        host = {
            "python": python, "model": str(model), "layers": [1, 3], "gpus": 0, "tp": 1, "context_length": 4096,
            "min_free": "1MiB", "parity_rate": 0,
        }  # fmt: skip
        cluster = {
            "login": "local", "workdir": str(self.shared), "scratch": str(self.root / "scratch"),
            "chunk_tokens": CHUNK_TOKENS, "lease": 10,
            "serve_with": [python, str(SERVE), str(self.delay_seconds), str(self.hidden)],
            "in_flight_tokens": 150, **self.lab.settings(), **settings,
        }  # fmt: skip
        content = {
            "local": {"python": python, "workdir": str(self.root / "local")},
            "modes": {"extract": {"capture": True, "flags": {"dtype": "float32"}}},
            "defaults": host,
            "hosts": {"box": {"connection": "local", "workdir": str(self.root / "box")}},
            "clusters": {CLUSTER: cluster},
        }
        (self.root / "inventory.yaml").write_text(json.dumps(content))
        return model

    def build(self, **settings: object) -> None:
        """Make an inventory, a dataset and a plan."""
        model = self.write_inventory(**settings)
        draw = random.Random(0)
        source = self.root / "records.jsonl"
        with source.open("w") as out:
            for length in LENGTHS:
                tokens = [draw.randrange(250) for _ in range(length)]
                self.tokens.append(tokens)
                out.write(json.dumps({"input_ids": tokens, "loss_mask": [0, *[1] * (length - 1)]}) + "\n")
        dataset = self.root / "dataset"
        fleet = self.fleet()
        request = PrepareRequest(inputs=[str(source)], out=str(dataset), tokenizer=str(model), processes=1, seed=None)
        prepare(fleet.local, request)
        assert plan(fleet, dataset, RUN).fits

    def submit(self) -> str:
        fleet = self.fleet()
        inventory = fleet.inventory
        self.job = clusters.submit(fleet, inventory.clusters[CLUSTER], RUN).result.job
        return self.job

    def done(self) -> int:
        (outcome,) = status(self.fleet(), RUN)
        return outcome.result.standing.runs[0].state.counts.done

    def judge(self) -> None:
        """Pull, and compare every record with the stand-in's result for the record's tokens."""
        destination = self.root / "delivered"
        pulled = pull(self.fleet(), Wish(run=RUN), str(destination), lambda tallies: lambda: None)
        assert not pulled.missing, pulled.missing
        config = Config("", "", 0, hidden=self.hidden)
        for index in range(RECORDS):
            tokens, states = _tensors(destination / "hidden_states" / f"hs_{index}.safetensors")
            assert tokens == self.tokens[index], f"record {index} has other tokens"
            assert np.array_equal(states, states_of(tokens, config)), f"record {index} is corrupt"
        rows = [row for path in (self.run / "queue" / "published").glob("*/*/rows.json") for row in _rows(path)]
        assert sorted(row["index"] for row in rows) == list(range(RECORDS)), "a record was published twice, or never"


def _tensors(path: Path) -> tuple[list[int], np.ndarray]:
    """Return token ids and states of a shard, read as the format's description says."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])

    def tensor(name: str, dtype: str) -> np.ndarray:
        start, stop = header[name]["data_offsets"]
        return np.frombuffer(content[begin + start : begin + stop], dtype).reshape(header[name]["shape"])

    return tensor("token_ids", "<i8").tolist(), tensor("hidden_states", "<f4")


def _rows(path: Path) -> list[dict[str, int]]:
    found: list[dict[str, int]] = json.loads(path.read_text())["rows"]
    return found


Strike = Callable[[Site[LabT], random.Random], None]


def trial(site: Site[LabT], strike: Strike[LabT], fraction: float, draw: random.Random) -> float:
    """Submit, strike when `fraction` of the run is published, await the end and judge; return the seconds."""
    began = time.monotonic()
    site.submit()
    chunks = sum(LENGTHS) / CHUNK_TOKENS
    until(lambda: site.published() >= fraction * chunks, PATIENCE_SECONDS)
    strike(site, draw)
    until(lambda: site.done() == RECORDS, PATIENCE_SECONDS)
    until(site.lab.is_idle, PATIENCE_SECONDS)
    site.judge()
    return time.monotonic() - began
