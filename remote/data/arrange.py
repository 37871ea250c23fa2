"""Turns the spool's records into a dataset's Arrow files: removes duplicates, orders the records, writes each file.

Called by `remote.data.prepare`. The order depends only on the records and the seed: not on timing, on the number of
processes, or on the version of a random generator.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from remote.data.chunk import BYTES_PER_TOKEN, METHODS, ROW, SpooledChunk, read_index
from remote.data.dataset import SCHEMA, batch_of, shard_filename
from remote.data.sources import Chunk
from remote.shared.files import written_aside
from remote.shared.messages.dataset import MaskMethod

SHARD_TOKENS = 8 << 20
"""Tokens of an Arrow file: 40 MB, so that a dataset of a hundred million tokens has enough files for 16 processes."""
_BATCH_TOKENS = 1 << 20
"""Tokens of a record batch, which limit a writer's memory to about 10 MB."""


@dataclass(frozen=True)
class Catalogue:
    """One entry for each record: first in the order of the sources, and after `take` in the order of the dataset."""

    chunk: np.ndarray
    """int32 [N]: number of the record's spool file."""
    offset: np.ndarray
    """int64 [N]: the record's first byte in the spool file."""
    length: np.ndarray
    """int32 [N]: tokens of the record."""
    loss: np.ndarray
    """int32 [N]: tokens with mask 1."""
    origin: np.ndarray
    """int64 [N, 2]: number of the source, and of the record in it."""
    digest: np.ndarray
    """uint64 [N, 2]: xxh3-128 of ids and mask, high half first."""
    method: np.ndarray
    """uint8 [N]: the place in METHODS of the method that made the mask."""
    truncated: np.ndarray
    """bool."""

    def take(self, places: np.ndarray) -> Catalogue:
        """Return the entries at `places`, in that order."""
        return Catalogue(**{column.name: getattr(self, column.name)[places] for column in fields(self)})

    def methods(self) -> dict[MaskMethod, int]:
        """Return the number of records for each method of making masks."""
        counts = np.bincount(self.method, minlength=len(METHODS)).tolist()
        return {method: count for method, count in zip(METHODS, counts, strict=True) if count}

    def content_digest(self) -> str:
        """Return the xxh3-128 over the records' digests in order."""
        return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(self.digest, ">u8").tobytes())


def catalogue(chunks: list[Chunk], spooled: list[SpooledChunk]) -> Catalogue:
    """Return the chunks' indices as one catalogue."""
    counts = [len(chunk.rows) for chunk in spooled]
    offsets = [np.cumsum(chunk.rows["length"], dtype=np.int64) - chunk.rows["length"] for chunk in spooled]
    sources = np.repeat(np.array([chunk.source for chunk in chunks], np.int64), counts)
    rows = np.concatenate([np.zeros(0, ROW), *(chunk.rows for chunk in spooled)])
    return Catalogue(
        chunk=np.repeat(np.arange(len(spooled), dtype=np.int32), counts),
        offset=np.concatenate([np.zeros(0, np.int64), *offsets]) * BYTES_PER_TOKEN,
        length=rows["length"].copy(),
        loss=rows["loss"].copy(),
        origin=np.stack([sources, rows["number"]], axis=1),
        digest=rows["digest"].copy(),
        method=rows["method"].copy(),
        truncated=rows["truncated"].copy(),
    )


def first_of_each(records: Catalogue) -> np.ndarray:
    """Return the ascending places of the records that are no exact copy (same ids and mask) of an earlier record."""
    high, low = records.digest[:, 0], records.digest[:, 1]
    order = np.lexsort((low, high))
    same = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
    return np.sort(order[np.concatenate([[True], ~same])]) if len(order) else order


def shuffled(records: Catalogue, seed: int | None) -> np.ndarray:
    """Return the places ordered by a hash of seed and content, the order of global indices. None keeps the order."""
    if seed is None:
        return np.arange(len(records.length))
    rows, seed = np.ascontiguousarray(records.digest, ">u8").tobytes(), seed & (1 << 64) - 1
    keys = [xxhash.xxh3_64_intdigest(rows[place : place + 16], seed) for place in range(0, len(rows), 16)]
    return np.lexsort((records.digest[:, 1], records.digest[:, 0], np.array(keys, np.uint64)))


def cut(lengths: np.ndarray) -> list[tuple[int, int]]:
    """Cut the dataset into half-open ranges of records, one for each Arrow file."""
    if not len(lengths):
        return []
    file_of = (np.cumsum(lengths, dtype=np.int64) - 1) // SHARD_TOKENS
    edges = [0, *(np.flatnonzero(np.diff(file_of)) + 1).tolist(), len(lengths)]
    return list(pairwise(edges))


@dataclass(frozen=True)
class ShardTask:
    """One Arrow file to write."""

    target: Path
    spool: Path
    chunk: np.ndarray
    offset: np.ndarray
    length: np.ndarray


def shard_tasks(records: Catalogue, out: Path, spool: Path) -> Iterator[ShardTask]:
    """Yield a task for each Arrow file of the arranged `records`."""
    ranges = cut(records.length)
    for shard, (start, stop) in enumerate(ranges):
        part = slice(start, stop)
        target = out / shard_filename(shard, len(ranges))
        yield ShardTask(target, spool, records.chunk[part], records.offset[part], records.length[part])


def write_shard(task: ShardTask) -> int:
    """Write one Arrow file atomically, unless it exists; return the number of its records."""
    if not task.target.exists():
        with (
            written_aside(task.target) as aside,
            pa.OSFile(str(aside), "wb") as sink,
            pa.ipc.new_stream(sink, SCHEMA) as writer,
        ):
            for batch in _batches(task):
                writer.write_batch(batch)
    return len(task.length)


def _batches(task: ShardTask) -> Iterator[pa.RecordBatch]:
    batch_of_row = np.cumsum(task.length, dtype=np.int64) // _BATCH_TOKENS
    edges = [0, *(np.flatnonzero(np.diff(batch_of_row)) + 1).tolist(), len(task.length)]
    for start, stop in pairwise(edges):
        yield batch_of(_read(task, start, stop))


def _read(task: ShardTask, start: int, stop: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return some rows of the shard in order. Opens one spool file at a time, because a spool has very many."""
    rows: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0), np.empty(0))] * (stop - start)
    chunks = task.chunk[start:stop]
    order = np.lexsort((task.offset[start:stop], chunks))
    for _, places in groupby(order.tolist(), key=lambda place: int(chunks[place])):
        held = list(places)
        with spool_name(task.spool, int(chunks[held[0]])).with_suffix(".records").open("rb") as file:
            for place in held:
                length, offset = int(task.length[start + place]), int(task.offset[start + place])
                content = os.pread(file.fileno(), BYTES_PER_TOKEN * length, offset)
                ids, mask = (
                    np.frombuffer(content, np.int32, length),
                    np.frombuffer(content, np.int8, length, 4 * length),
                )
                rows[place] = (ids, mask)
    return rows


def spool_name(spool: Path, chunk: int) -> Path:
    """Return the path of a chunk's files in the spool, without suffix."""
    return spool / f"{chunk:06d}"


def read_spool(spool: Path, chunk: int) -> SpooledChunk:
    """Read one finished chunk's index."""
    return read_index(spool_name(spool, chunk).with_suffix(".index"))
