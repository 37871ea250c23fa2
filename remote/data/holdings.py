"""What a place claims to hold: the rows of its ledger, where their shards are, and the records it should have.

Two places: a destination that shards were pulled to, and a run on a host. Read-only; called by `verify`, `export`.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from remote.data.dataset import DatasetFolder
from remote.errors import HostError, UsageError
from remote.extract import assignment
from remote.extract.ledger import Ledger
from remote.messages.extract import Identity, ShardRow
from remote.paths import RunPaths, shard_name

_SHARD = re.compile(r"hs_(\d+)\.safetensors(\.zst|\.rst)?")
HIDDEN_STATES = "hidden_states"


@dataclass(frozen=True)
class Holdings:
    """A place's own account of itself."""

    identity: Identity
    shards: Path
    """The folder with `hs_{i}.safetensors`."""
    rows: list[ShardRow]
    expected: np.ndarray
    """int64, ascending: the records that should be here in the end."""
    token_ids: Callable[[int], np.ndarray]
    """Of a record by its global index: int [L]."""
    quarantined: frozenset[int] = field(default_factory=frozenset)
    delivered: frozenset[int] = field(default_factory=frozenset)
    """Pulled and freed here."""

    def path(self, index: int) -> Path:
        """Where a record's shard is."""
        return self.shards / shard_name(index)

    def holes(self) -> np.ndarray:
        """Expected records that no row speaks of, and that were not given up or delivered: int64."""
        known = np.array([row.index for row in self.rows], np.int64)
        settled = np.array(sorted(self.quarantined | self.delivered), np.int64)
        return np.setdiff1d(self.expected, np.concatenate([known, settled]))

    def strangers(self) -> Iterator[Path]:
        """Files and folders beside the shards that no row speaks of."""
        known = {row.index for row in self.rows}
        for path in sorted(self.shards.iterdir()) if self.shards.is_dir() else []:
            match = _SHARD.fullmatch(path.name)
            if not match or int(match[1]) not in known:
                yield path


def of_destination(folder: Path) -> Holdings:
    """A destination's holdings; raises UsageError where `folder` is not one."""
    dataset = DatasetFolder.open(folder)
    ledger = folder / "roost" / "ledger.sqlite"
    return Holdings(
        identity=destination_identity(folder),
        shards=folder / HIDDEN_STATES,
        rows=_delivered_rows(ledger),
        expected=np.arange(dataset.manifest.records, dtype=np.int64),
        token_ids=lambda index: dataset.record(index).input_ids,
    )


def destination_identity(folder: Path) -> Identity:
    """The identity that a destination's own manifest holds."""
    path = folder / "roost" / "manifest.json"
    try:
        return Identity.model_validate(json.loads(path.read_bytes())["identity"])
    except FileNotFoundError as error:
        raise UsageError(
            f"{folder} is not a place that shards were pulled to: it has no roost/manifest.json.",
            remedy="Name the folder that was given to inv pull --to.",
        ) from error
    except (ValueError, KeyError, ValidationError) as error:
        raise HostError(f"{path} could not be read.", remedy="Pull again: it is written anew.") from error


def _delivered_rows(path: Path) -> list[ShardRow]:
    if not path.exists():
        return []
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=30)) as db:
            found = db.execute("SELECT idx, rows, size_bytes, xxh3, epoch FROM records ORDER BY idx").fetchall()
    except sqlite3.DatabaseError as error:
        raise HostError(f"The ledger {path} could not be read: {error}.") from error
    return [
        ShardRow(index=index, rows=rows, size_bytes=size, xxh3=xxh3, epoch=epoch)
        for index, rows, size, xxh3, epoch in found
    ]


def of_run(paths: RunPaths) -> Holdings:
    """A run's holdings on this host; raises UsageError where the run is not known here."""
    work = assignment.load(assignment.newest(paths))
    positions = {index: position for position, index in enumerate(work.index.tolist())}
    with Ledger(paths.ledger) as ledger:
        states = ledger.states()
        rows = [row for _, row in ledger.shards()]
    return Holdings(
        identity=work.assignment.identity,
        shards=paths.shards,
        rows=[row for row in rows if row.index in positions],
        expected=np.sort(work.index),
        token_ids=lambda index: work.tokens(positions[index]),
        quarantined=frozenset(index for index, (state, _, _) in states.items() if state == "quarantined"),
        delivered=frozenset(index for index, (state, _, _) in states.items() if state == "freed"),
    )
