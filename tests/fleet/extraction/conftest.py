"""Two hosts on the laptop itself (the real `local` backend under the engine's Python), each with a stand-in server."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from hosts.commands.plan import plan
from hosts.commands.prepare import prepare
from hosts.fleet import Fleet
from hosts.inventory.load import load_inventory
from hosts.practice.paths import PracticePaths
from remote.shared.messages.dataset import PrepareRequest
from tests.remote.extract.standin import Config
from tests.remote.extract.standin_process import Pool, StandInProcess

RUN = "trial"
LENGTHS = [8 + number % 50 for number in range(120)]
INVENTORY = """
local: {{python: {python}, workdir: {root}/laptop}}
modes: {{extract: {{capture: true, flags: {{dtype: float32}}}}}}
defaults:
  connection: local
  python: {python}
  gpus: 0
  tp: 1
  model: {model}
  layers: [1, 3]
  context_length: 4096
  min_free: 1MiB
  dump_high_water: 256MiB
  parity_rate: 0
hosts:
  a: {{workdir: {root}/a, dump_dir: {ramdisk}/a}}
  b: {{workdir: {root}/b, dump_dir: {ramdisk}/b}}
"""


@dataclass
class Site:
    """A laptop with an inventory, and the stand-ins of its hosts."""

    inventory: Path
    root: Path
    ramdisk: Path
    model: Path
    pool: Pool
    servers: dict[str, StandInProcess] = field(default_factory=dict)

    def fleet(self, *names: str) -> Fleet:
        """The named hosts, or all."""
        return _fleet(self.inventory, *names)

    def serve(self, name: str, **config: object) -> StandInProcess:
        """Start a host's stand-in."""
        server = self.pool.take()
        hidden = json.loads((self.model / "config.json").read_text())["hidden_size"]
        settings = {"workdir": str(self.root / name), "dump_dir": str(self.ramdisk / name), "port": server.port}
        server.configure(Config(**{**settings, "hidden": hidden, **config}))
        self.servers[name] = server
        return server


@pytest.fixture(scope="session")
def pool(clone: Path) -> Iterator[Pool]:
    """Warm stand-ins."""
    made = Pool()
    yield made
    made.close()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, clone: Path, tiny_model_path: Path) -> Path:
    """A folder with a dataset and the plan of a run over two hosts, made once: preparing takes seconds."""
    root = tmp_path_factory.mktemp("prepared")
    ramdisk = Path("/dev/shm")
    fleet = _fleet(_inventory(root, ramdisk, clone, tiny_model_path))
    source = write_records(root / "records.jsonl", LENGTHS)
    request = PrepareRequest(
        inputs=[str(source)], out=str(root / "dataset"), tokenizer=str(tiny_model_path), processes=1
    )
    prepare(fleet.local, request)
    assert plan(fleet, root / "dataset", RUN).fits
    return root


@pytest.fixture
def site(tmp_path: Path, clone: Path, pool: Pool, tiny_model_path: Path, prepared: Path) -> Iterator[Site]:
    """A laptop with a planned run, and two hosts with nothing on them yet."""
    ramdisk = Path(tempfile.mkdtemp(prefix="roost-test-", dir="/dev/shm"))
    inventory = _inventory(tmp_path, ramdisk, clone, tiny_model_path)
    shutil.copytree(prepared / ".roost", tmp_path / ".roost")
    yield Site(inventory, tmp_path, ramdisk, tiny_model_path, pool)
    pool.give_back()
    shutil.rmtree(ramdisk, ignore_errors=True)


def _inventory(root: Path, ramdisk: Path, clone: Path, model: Path) -> Path:
    path, python = root / "inventory.yaml", PracticePaths(clone).engine_python
    path.write_text(INVENTORY.format(python=python, root=root, ramdisk=ramdisk, model=model))
    return path


def _fleet(path: Path, *names: str) -> Fleet:
    inventory = load_inventory(path)
    return Fleet(inventory, [host for name, host in inventory.hosts.items() if not names or name in names])


def write_records(path: Path, lengths: list[int]) -> Path:
    """Already tokenized records, as `prepare` reads them."""
    rng = np.random.default_rng(0)
    with path.open("w") as out:
        for length in lengths:
            tokens = rng.integers(0, 250, length).tolist()
            out.write(json.dumps({"input_ids": tokens, "loss_mask": [0, *[1] * (length - 1)]}) + "\n")
    return path
