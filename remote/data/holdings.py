"""The records of a place according to its ledger: the rows, their shards, and the expected records.

A place is a destination that shards were pulled to, or a run on a host. Read-only; called by `verify`, `export`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from remote.data.dataset import DatasetFolder
from remote.shared import ranges as sets
from remote.shared.codec.container import SUFFIX
from remote.shared.errors import RecordError, UsageError
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.transfer import DestinationManifest
from remote.shared.paths import RunPaths, shard_name
from remote.shared.shard.tensorfile import TensorFile
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.ledger import DestinationLedger
from remote.shared.transfer.manifest import manifest_of
from remote.work.holding import Holding
from remote.work.ledger import Ledger

_SHARD = re.compile(rf"hs_(\d+)\.safetensors(?:{re.escape(SUFFIX)})?")
HIDDEN_STATES = "hidden_states"


@dataclass(frozen=True)
class Holdings:
    """The records of one place, by its own ledger."""

    identity: RunIdentity
    shards: Path
    """The folder with `hs_{i}.safetensors`."""
    rows: list[ShardRow]
    expected: np.ndarray
    """int64, ascending: indices of the records that should be here in the end."""
    token_ids: Callable[[int], np.ndarray]
    """Returns the token ids of a record, int [L], by its global index."""
    quarantined: frozenset[int] = field(default_factory=frozenset)
    delivered: frozenset[int] = field(default_factory=frozenset)
    """Indices of records that were pulled and then freed here."""
    has_dataset: bool = True
    """False if the dataset's files are not here (a pull by a laptop without them): `tokens` then reads the shards."""

    def path(self, row: ShardRow) -> Path:
        """Return the path of a record's shard."""
        return self.shards / (shard_name(row.index) + (SUFFIX if row.stored == "compressed" else ""))

    def holes(self) -> np.ndarray:
        """Return the expected records, int64, that have no row and were neither given up nor delivered."""
        known = np.array([row.index for row in self.rows], np.int64)
        settled = np.array(sorted(self.quarantined | self.delivered), np.int64)
        return np.setdiff1d(self.expected, np.concatenate([known, settled]))

    def strangers(self) -> Iterator[Path]:
        """Return the files and folders beside the shards that have no row."""
        known = {row.index for row in self.rows}
        for path in sorted(self.shards.iterdir()) if self.shards.is_dir() else []:
            match = _SHARD.fullmatch(path.name)
            if not match or int(match[1]) not in known:
                yield path


def of_destination(folder: Path) -> Holdings:
    """Return a destination's holdings; raises UsageError if `folder` is not one."""
    manifest = _destination_manifest(folder)
    rows = {row.index: row for row in _delivered_rows(folder / "roost" / "ledger.sqlite")}
    dataset = DatasetFolder.open(folder) if (folder / "manifest.json").exists() else None

    def token_ids(index: int) -> np.ndarray:
        if dataset is not None:
            return dataset.record(index).input_ids
        try:
            return TensorFile.open(place.path(rows[index]), size=rows[index].size_bytes).array("token_ids")
        except RecordError:  # the check of this shard finds and reports the same
            return np.zeros(rows[index].rows, np.int64)

    place = Holdings(
        identity=manifest.identity,
        shards=folder / manifest.identity.folder,
        rows=list(rows.values()),
        expected=np.arange(manifest.records, dtype=np.int64),
        token_ids=token_ids,
        has_dataset=dataset is not None,
    )
    return place


def _destination_manifest(folder: Path) -> DestinationManifest:
    """Return a destination's manifest; raises UsageError if `folder` is no destination, or does not name its run."""
    if (folder / "roost" / "export.json").is_file():
        raise UsageError(
            f"{folder} is an export, which has no ledger with the digests of its files.",
            remedy="Name the destination that the export was made from: the folder that inv pull --to was given.",
        )
    manifest = manifest_of(Destination(folder))
    if manifest is None:
        raise UsageError(
            f"{folder} is not the destination of a pull: it has no roost/manifest.json.",
            remedy="Pull into it with inv pull --to, or name the folder that an earlier inv pull --to was given.",
        )
    return manifest


def _delivered_rows(path: Path) -> list[ShardRow]:
    if not path.exists():
        return []
    with DestinationLedger(path) as ledger:
        return [
            ShardRow(
                index=row.index,
                rows=row.rows,
                size_bytes=row.size_bytes,
                xxh3=row.xxh3,
                epoch=row.epoch,
                stored=row.stored,
            )
            for row in ledger.rows()
        ]


def of_run(paths: RunPaths) -> Holdings:
    """Return a run's holdings on this host; raises UsageError if the run is not known here."""
    work = Holding(paths).work
    positions = {index: position for position, index in enumerate(work.index.tolist())}
    with Ledger(paths.ledger, to_read=True) as ledger:
        states = ledger.states()
        rows = [row for _, row in ledger.shards()]
    return Holdings(
        identity=work.assignment.identity,
        shards=paths.shards,
        rows=[row for row in rows if row.index in positions],
        expected=np.array(list(sets.indices(work.assignment.ranges)), np.int64),
        token_ids=lambda index: work.tokens(positions[index]),
        quarantined=frozenset(index for index, (state, _, _) in states.items() if state == "quarantined"),
        delivered=frozenset(index for index, (state, _, _) in states.items() if state == "freed"),
    )
