"""A dataset folder on disk: the only module that knows its files.

<dataset>/data-00000-of-00002.arrow …   columns input_ids, loss_mask, seq_len; row number = global index
    <dataset>/dataset_info.json, state.json what `datasets.load_from_disk` needs, with format "torch"
    <dataset>/lengths.npy                   int32 [N], tokens a record
    <dataset>/origins.npy                   int64 [N, 2], number of the source and of the record in it
    <dataset>/expected.npy                  int32 [N], of prompts alone: tokens a record that are expected in the end
    <dataset>/manifest.json                 `remote.shared.messages.dataset.Manifest`

A dataset of prompts has one more column, `conversation`: the rest of the conversation after its first answer, as JSON,
or "" if there is no rest.

Written by `prepare`, read by the other data verbs; on a laptop or on a host.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from remote.shared.errors import UsageError
from remote.shared.files import write_whole
from remote.shared.messages.dataset import Manifest, Ranges

SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.int8())), ("seq_len", pa.int32())])
PROMPT_SCHEMA = pa.schema([*SCHEMA, ("conversation", pa.large_string())])
_FEATURES = {
    "input_ids": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "Sequence"},
    "loss_mask": {"feature": {"dtype": "int8", "_type": "Value"}, "_type": "Sequence"},
    "seq_len": {"dtype": "int32", "_type": "Value"},
}
"""Features in the form that `datasets` 2 to 5 can read. Version 4 and later write `List`, which version 3 refuses."""


@dataclass(frozen=True)
class Record:
    """One row."""

    index: int
    input_ids: np.ndarray
    """int32 [L]."""
    loss_mask: np.ndarray
    """int8 [L]."""


class DatasetFolder:
    """A finished dataset, memory-mapped. To open a million records, only their offsets are read."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open(cls, path: str | Path) -> DatasetFolder:
        """Return the dataset at `path`; raises UsageError if there is none."""
        root = Path(path).expanduser()
        if not (root / "manifest.json").is_file():
            raise UsageError(
                f"There is no dataset at {root}: it has no manifest.json.", remedy="Make one with inv prepare."
            )
        return cls(root)

    @cached_property
    def manifest(self) -> Manifest:
        try:
            return Manifest.model_validate_json((self.root / "manifest.json").read_bytes())
        except ValidationError as error:
            raise UsageError(f"The manifest of the dataset at {self.root} cannot be read: {error}.") from error

    @cached_property
    def lengths(self) -> np.ndarray:
        """int32 [N]: tokens of each record."""
        lengths: np.ndarray = np.load(self.root / "lengths.npy", mmap_mode="r")
        return lengths

    @cached_property
    def expected(self) -> np.ndarray:
        """int32 [N]: tokens that each record is expected to have in the end, for a dataset of prompts."""
        expected: np.ndarray = np.load(self.root / "expected.npy", mmap_mode="r")
        return expected

    @cached_property
    def origins(self) -> np.ndarray:
        """int64 [N, 2]: number of the source, and of the record in it."""
        origins: np.ndarray = np.load(self.root / "origins.npy", mmap_mode="r")
        return origins

    def origin(self, index: int) -> str:
        """Return the origin of record `index` as `FILE:NUMBER`."""
        source, number = self.origins[index].tolist()
        return f"{Path(self.manifest.sources[source].path).name}:{number}"

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        state = json.loads((self.root / "state.json").read_bytes())
        batches: list[pa.RecordBatch] = []
        for entry in state["_data_files"]:
            batches += pa.ipc.open_stream(pa.memory_map(str(self.root / entry["filename"])))
        return batches

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    def record(self, index: int) -> Record:
        """Return row `index`; raises UsageError if there is no such row."""
        if not 0 <= index < self.manifest.records:
            raise UsageError(f"There is no record {index}: the dataset has 0 to {self.manifest.records - 1}.")
        return next(self.records([(index, index + 1)]))

    def records(self, ranges: Ranges) -> Iterator[Record]:
        """Yield the rows of `ranges` in order."""
        for batch, first, start, stop in self._slices(ranges):
            ids, mask = batch.column(0), batch.column(1)
            edges = ids.offsets.to_numpy()
            ids_flat, mask_flat = ids.values.to_numpy(), mask.values.to_numpy()
            mask_edges = mask.offsets.to_numpy()
            for row in range(start, stop):
                yield Record(
                    first + row,
                    ids_flat[edges[row] : edges[row + 1]],
                    mask_flat[mask_edges[row] : mask_edges[row + 1]],
                )

    def conversations(self, ranges: Ranges) -> Iterator[str]:
        """Yield the `conversation` column of `ranges`, for a dataset of prompts."""
        for batch, _, start, stop in self._slices(ranges):
            yield from batch.column(3).slice(start, stop - start).to_pylist()

    def tokens(self, ranges: Ranges) -> Iterator[np.ndarray]:
        """Yield the concatenated ids of `ranges` in pieces of any length: int32 [any]."""
        for batch, _, start, stop in self._slices(ranges):
            ids = batch.column(0)
            edges = ids.offsets
            yield ids.values.to_numpy()[edges[start].as_py() : edges[stop].as_py()]

    def _slices(self, ranges: Ranges) -> Iterator[tuple[pa.RecordBatch, int, int, int]]:
        """Yield (batch, its first index, start row, stop row)."""
        starts = self._starts
        for start, stop in ranges:
            at = start
            while at < stop:
                place = int(np.searchsorted(starts, at, side="right")) - 1
                first, end = int(starts[place]), int(min(stop, starts[place + 1]))
                yield self._batches[place], first, at - first, end - first
                at = end


def shard_filename(shard: int, shards: int) -> str:
    """Return the name of one Arrow file, numbered like those of `datasets`."""
    return f"data-{shard:05d}-of-{shards:05d}.arrow"


def batch_of(records: list[tuple[np.ndarray, np.ndarray]]) -> pa.RecordBatch:
    """Return (ids int32 [L], mask int8 [L]) pairs as one record batch of `SCHEMA`."""
    lengths = np.array([len(ids) for ids, _ in records], np.int32)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    ids = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate([ids for ids, _ in records])))
    mask = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate([mask for _, mask in records])))
    return pa.RecordBatch.from_arrays([ids, mask, pa.array(lengths)], schema=SCHEMA)


def prompt_batch(ids: list[np.ndarray], conversations: list[str]) -> pa.RecordBatch:
    """Return prompts (int32 [L] each) as one record batch of `PROMPT_SCHEMA`."""
    plain = batch_of([(one, np.zeros(len(one), np.int8)) for one in ids])
    return pa.RecordBatch.from_arrays(
        [*plain.columns, pa.array(conversations, pa.large_string())], schema=PROMPT_SCHEMA
    )


def write_expected(root: Path, expected: np.ndarray) -> None:
    """Write int32 [N], the number of tokens that each prompt's conversation is expected to have in the end."""
    write_whole(root / "expected.npy", _npy(expected))


def finish(root: Path, shards: int, lengths: np.ndarray, origins: np.ndarray, manifest: Manifest) -> None:
    """Write all other files beside the Arrow files; `manifest.json` is the last."""
    files = [{"filename": shard_filename(shard, shards)} for shard in range(shards)]
    state: dict[str, Any] = {
        "_data_files": files,
        "_fingerprint": manifest.digest[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }
    info = {"citation": "", "description": "", "features": _FEATURES, "homepage": "", "license": ""}
    write_whole(root / "state.json", json.dumps(state, indent=1).encode())
    write_whole(root / "dataset_info.json", json.dumps(info, indent=1).encode())
    write_whole(root / "lengths.npy", _npy(lengths))
    write_whole(root / "origins.npy", _npy(origins))
    write_whole(root / "manifest.json", manifest.model_dump_json(indent=1).encode())


def _npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()
