"""What a record of a run can be: its rows from the dataset, its bytes and tensors from the plan's identity.

Runs where records land. A host's word is held against these before room is reserved for a record, and again when its
bytes are here, so that a host that lies fails alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from remote.shared import foreign
from remote.shared.errors import HostError
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.run import RunIdentity

HEADER_LIMIT = 1 << 20
"""Bytes of a shard's header; capture's own take some pages."""
MOST_ROWS = 1 << 24
"""Of a record whose length nobody here knows: longer than any server's context."""
LONGEST_REASON = 500
_TOKEN_BYTES = 8
_FIRST_BYTES = 8192
"""The header of most shards."""
_DIGEST = re.compile(r"[0-9a-f]{32}")


class OfferError(HostError):
    """A host offers what can be no record of the run."""

    kind = "protocol"


@dataclass(frozen=True)
class Bounds:
    """The records of one run."""

    identity: RunIdentity
    records: int
    """Of the dataset."""
    lengths: Sequence[int] = ()
    """Tokens of every record, by index; empty if the dataset is not at hand."""

    def tensor_bytes(self, rows: int) -> int:
        """Bytes of the tensors of a record with so many rows, or of several with so many rows together."""
        return rows * (_TOKEN_BYTES + self.identity.row_bytes)

    def problem(self, row: ShardRow) -> str:
        """Why a host's ledger row can be no record of this run; "" if it can."""
        if not 0 <= row.index < self.records:
            return f"the dataset has {self.records:,} records"
        if self.lengths and row.rows != self.lengths[row.index]:
            return f"it is said to have {row.rows:,} rows, and the dataset has {self.lengths[row.index]:,} tokens"
        if not 0 < row.rows <= MOST_ROWS:
            return f"it is said to have {row.rows:,} rows"
        least = self.tensor_bytes(row.rows)
        if not least < row.size_bytes <= least + HEADER_LIMIT:
            return f"it is said to have {row.size_bytes:,} bytes, and its {row.rows:,} rows take {least:,}"
        return "" if _DIGEST.fullmatch(row.xxh3) else "its digest is not one"

    def misfit(self, row: ShardRow, path: Path) -> str:
        """Why the whole, plain shard at `path` is no record of this run by its own header; "" if it is one."""
        identity = self.identity
        wanted = (identity.dtype, [row.rows, len(identity.boundaries), identity.hidden_size])
        try:
            with path.open("rb", buffering=0) as stream:
                start = stream.read(_FIRST_BYTES)
                length = int.from_bytes(start[:8], "little")
                if length > HEADER_LIMIT:
                    raise ValueError
                text = start[8 : 8 + length]
                while len(text) < length and (more := stream.read(length - len(text))):
                    text += more
            entries = foreign.loads(text)
            metadata = dict(entries.pop("__metadata__", {}))
            found = entries["hidden_states"]["dtype"], entries["hidden_states"]["shape"]
            size = 8 + length + max(entry["data_offsets"][1] for entry in entries.values())
        except (ValueError, LookupError, TypeError, AttributeError):
            return "its safetensors header cannot be read"
        if found != wanted:
            return f"its hidden_states are {found[0]} {found[1]}; {wanted[0]} {wanted[1]} was wanted"[:LONGEST_REASON]
        if size != row.size_bytes:
            return f"its header speaks of {size:,} bytes, and it has {row.size_bytes:,}"[:LONGEST_REASON]
        if self._marks.items() <= metadata.items():
            return ""
        return identity.mismatch(metadata)[:LONGEST_REASON].rstrip(".")

    @cached_property
    def _marks(self) -> dict[str, str]:
        """Computed once: every record is held against them."""
        return self.identity.marks


class Listing:
    """A host's offer as it arrives: what cannot be, or comes twice, ends it, so that it is no longer than the run."""

    def __init__(self, bounds: Bounds) -> None:
        self.rows: list[ShardRow] = []
        self._bounds = bounds
        self._seen: set[int] = set()

    def take(self, rows: Iterable[ShardRow]) -> None:
        """Add rows of the host's ledger; raises OfferError."""
        for row in rows:
            problem = "it is offered twice" if row.index in self._seen else self._bounds.problem(row)
            if problem:
                raise OfferError(f"The host offers a record {row.index} that cannot be: {problem}.")
            self._seen.add(row.index)
            self.rows.append(row)
