"""A laptop with a planned run, and two hosts behind a real sshd whose ledgers say that they have records of it."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import xxhash

from hosts.commands.pull import Pulled, pull
from hosts.fleet import Fleet, fleet_of
from hosts.inventory.kept import Kept
from hosts.inventory.load import load_inventory
from hosts.plan.plan import Plan, PlannedShare, load, save
from remote.shared.codec.container import pack_file
from remote.shared.messages.extract import ExtractorState
from remote.shared.messages.transfer import Store, Wish
from remote.shared.paths import RunPaths, Workdir
from remote.work.ledger import Ledger, Row
from tests.fleet.conftest import SshHost
from tests.identities import run_identity
from tests.manifests import manifest
from tests.shards import IDENTITY, rows_in, rows_of, shard

RUN = "trial"
MIB = 1 << 20
RECORDS = 20
TOKENS = 1_000_000
SMALL = 5000
"""Bytes of a small record."""


SECOND: dict[str, object] = {"name": "second", "nonce": "f" * 16, "boundaries": (1, 2, 6, 8)}
"""In what the second run of this dataset differs from the first."""
OTHER_RUN = (
    r"holds the run 'trial' \(boundaries 1, 3, 6, 8\), not the run 'second' \(boundaries 1, 2, 6, 8\)\. "
    r"Pull into a folder of its own\."
)


@dataclass
class Site:
    """Where everything is; `records` is what every host was given, by index."""

    root: Path
    inventory: Path
    workdirs: dict[str, Path]
    records: dict[int, bytes] = field(default_factory=dict)
    to: str = ""
    """A destination other than the folder."""

    @property
    def dataset(self) -> Path:
        return self.root / "data"

    @property
    def destination(self) -> Path:
        return self.root / "it's a DEST"

    def change(self, host: str, **keys: object) -> None:
        """Set keys of a host in the inventory."""
        inventory = json.loads(self.inventory.read_text())
        inventory["hosts"][host].update(keys)
        self.inventory.write_text(json.dumps(inventory))

    def run_paths(self, host: str) -> RunPaths:
        return Workdir(self.workdirs[host]).run(RUN)

    def give(self, host: str, sizes: dict[int, int], epoch: int = 1) -> None:
        """Let `host` have finished records of these sizes in bytes."""
        self.put(host, {index: shard(size) for index, size in sizes.items()}, epoch)

    def give_share(self, host: str, records: int) -> None:
        """Let the plan give `host` the first records of the dataset."""
        path = Kept(self.root).plan(RUN)
        share = PlannedShare(
            host=host, weight=1.0, ranges=[(0, records)], records=records, tokens=records, longest=1, epoch=1
        )
        save(load(path).model_copy(update={"shares": [share]}), path)

    def plan_sizes(self, sizes: dict[int, int]) -> None:
        """Let the dataset have records whose shards take these sizes in bytes."""
        self._plan_rows({index: rows_in(size) for index, size in sizes.items()})

    def _plan_rows(self, rows: dict[int, int]) -> None:
        """Let the dataset have records of so many tokens; the last one, which no host has, takes up the difference."""
        lengths = np.load(self.dataset / "lengths.npy")
        for index, count in rows.items():
            lengths[index] = count
        lengths[-1] = TOKENS - lengths[:-1].sum()
        np.save(self.dataset / "lengths.npy", lengths)

    def put(self, host: str, contents: dict[int, bytes], epoch: int = 1) -> None:
        """Let `host` have finished exactly these records."""
        paths = self.run_paths(host)
        paths.shards.mkdir(parents=True, exist_ok=True)
        counts = {index: rows_of(content) for index, content in contents.items()}
        self._plan_rows(counts)
        rows = []
        for index, content in contents.items():
            paths.shard(index).write_bytes(content)
            self.records[index] = content
            digest = xxhash.xxh3_128_hexdigest(content)
            rows.append(Row(index, "done", rows=counts[index], epoch=epoch, size_bytes=len(content), xxh3=digest))
        with Ledger(paths.ledger) as ledger:
            ledger.note({"identity": IDENTITY.model_dump_json()})
            ledger.record(rows)

    def compress(self, host: str, *indices: int) -> None:
        """What `inv compress` does to these records of the host."""
        paths = self.run_paths(host)
        with Ledger(paths.ledger) as ledger:
            for index in indices:
                pack_file(paths.shard(index), paths.shards / f"{paths.shard(index).name}.rz")
                paths.shard(index).unlink()
                assert ledger.mark_stored(index, xxhash.xxh3_128_hexdigest(self.records[index]), "compressed")

    @contextmanager
    def extracting(self, host: str) -> Iterator[RunPaths]:
        """The host's extractor is at work on the run until the block ends."""
        paths = self.run_paths(host)
        paths.state.write_text(ExtractorState(run=RUN, epoch=1, status="running").model_dump_json())
        with paths.lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield paths

    def inv_pull(self, clone: Path, *options: str, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """`inv pull --hosts all` in a process of its own (and under another program), as a person runs it."""
        command = [*under, sys.executable, "-m", "invoke", "pull", "--hosts", "all", "--to", str(self.destination)]
        command += ["--inventory", str(self.inventory), *options]
        return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)

    def fleet(self) -> Iterator[Fleet]:
        loaded = load_inventory(self.inventory)
        with fleet_of(loaded, list(loaded.hosts.values())) as fleet:
            yield fleet

    def pull(self, store: Store = "plain", **wish: object) -> Pulled:
        """`inv pull --hosts all`, without a terminal."""
        for fleet in self.fleet():
            return pull(
                fleet, Wish(run=RUN, **wish), self.to or str(self.destination), lambda tallies: lambda: None, store
            )
        raise AssertionError

    def begin_second(self) -> RunPaths:
        """Plan a second run of the same dataset with other layers; host one has finished its records 0 and 1."""
        identity = run_identity(**{**dict(IDENTITY), **SECOND})
        plan = Plan(identity=identity, dataset=str(self.root / "data"), records=RECORDS, epoch=1, shares=[])
        save(plan, Kept(self.root).plan(identity.name))
        paths = Workdir(self.workdirs["one"]).run(identity.name)
        paths.shards.mkdir(parents=True)
        with Ledger(paths.ledger) as ledger:
            ledger.note({"identity": identity.model_dump_json()})
            for index in (0, 1):
                content = shard(SMALL)
                paths.shard(index).write_bytes(content)
                digest = xxhash.xxh3_128_hexdigest(content)
                ledger.record([Row(index, "done", rows_in(SMALL), 1, size_bytes=SMALL, xxh3=digest)])
        return paths

    def replanned_second(self) -> Plan:
        """Plan the second run anew under its name; its hosts still hold the earlier one."""
        path = Kept(self.root).plan("second")
        plan = load(path)
        plan = plan.model_copy(update={"identity": plan.identity.model_copy(update={"nonce": "0" * 16})})
        save(plan, path)
        return plan

    def pull_second(self, **wish: object) -> Pulled:
        """`inv pull --run second` to where the first run was pulled."""
        for fleet in self.fleet():
            return pull(fleet, Wish(run="second", **wish), self.to or str(self.destination), lambda _: lambda: None)
        raise AssertionError

    def delivered(self) -> dict[int, bytes]:
        """What lies at the destination under final names."""
        folder = self.destination / "hidden_states"
        return {int(path.stem[3:]): path.read_bytes() for path in folder.iterdir()}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a destination, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def site(private_sshd: SshHost, tmp_path: Path) -> Site:
    root = tmp_path / "lap top"
    dataset = root / "data"
    dataset.mkdir(parents=True)
    (dataset / "state.json").write_text("{}")
    _manifest(dataset)
    workdirs = {name: tmp_path / f"host $HOME '{name}'" for name in ("one", "two")}
    inventory = root / "inventory.yaml"
    inventory.write_text(json.dumps(_inventory(private_sshd, workdirs)))
    save(Plan(identity=IDENTITY, dataset=str(dataset), records=20, epoch=1, shares=[]), Kept(root).plan(RUN))
    made = Site(root, inventory, workdirs)
    for name in workdirs:
        made.give(name, {})
    return made


def _inventory(sshd: SshHost, workdirs: dict[str, Path]) -> dict[str, object]:
    host = sshd.host
    defaults = {
        "address": host.address,
        "ssh_port": host.ssh_port,
        "identity_file": host.identity_file,
        "known_hosts": host.known_hosts,
        "ssh_config": host.ssh_config,
        "python": host.python,
        "gpus": 0,
        "tp": 1,
    }
    return {
        "local": {"python": sys.executable},
        "defaults": defaults,
        "hosts": {name: {"workdir": str(path)} for name, path in workdirs.items()},
    }


def _manifest(dataset: Path) -> None:
    counts = manifest(records=RECORDS, tokens=TOKENS, loss_tokens=TOKENS, max_tokens=TOKENS, vocab_size=8)
    (dataset / "manifest.json").write_text(counts.model_dump_json())
    np.save(dataset / "lengths.npy", np.array([*[1] * (RECORDS - 1), TOKENS - RECORDS + 1], np.int32))
