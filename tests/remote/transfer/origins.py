"""A host of a pull without a host: a folder of shards behind a sender of its own, whose ledger is a list."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import xxhash

from remote.shared.messages.extract import Delivered, IndicesResult, ShardRow
from remote.shared.messages.transfer import Source, Wish
from remote.shared.paths import shard_name
from remote.shared.transfer.bounds import Bounds
from remote.shared.transfer.origin import Offer
from remote.shared.transfer.stream import SOURCE
from tests.shards import IDENTITY, rows_of

SENDER = [sys.executable, "-I", "-S", "-c", SOURCE]
RUN = "trial"


class Shelf:
    """An origin of the engine; `freed` are the indices that it was told to delete."""

    def __init__(self, name: str, folder: Path, contents: dict[int, bytes], sender: list[str] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.source = Source(name=name, sender=sender or SENDER, codec_sender=[], root=str(folder))
        self.rows = [row_of(index, content) for index, content in contents.items()]
        self.freed: list[int] = []
        self.before_free: Callable[[], None] = lambda: None
        self.status = "complete"
        self.listings = 0
        for index, content in contents.items():
            (folder / shard_name(index)).write_bytes(content)

    def offers(self, after: int) -> Offer:
        """What the ledger has beyond the cursor."""
        self.listings += 1
        gone = set(self.freed)
        return Offer([row for row in self.rows[after:] if row.index not in gone], len(self.rows), self.status)

    def free(self, records: list[Delivered]) -> IndicesResult:
        """Note what may be deleted."""
        self.before_free()
        self.freed += [record.index for record in records]
        return IndicesResult(records=len(records))


def row_of(index: int, content: bytes) -> ShardRow:
    """A host's ledger row of a record."""
    digest = xxhash.xxh3_128_hexdigest(content)
    return ShardRow(index=index, rows=rows_of(content), size_bytes=len(content), xxh3=digest, epoch=1)


def bounds_of(*shelves: Shelf, records: int = 20) -> Bounds:
    """What the records of these shelves may be."""
    lengths = dict.fromkeys(range(records), 1) | {row.index: row.rows for shelf in shelves for row in shelf.rows}
    return Bounds(IDENTITY, records, list(lengths.values()))


def wish(**asked: object) -> Wish:
    """A pull of the tests' run."""
    return Wish.model_validate({"run": RUN, **asked})
