"""The limits of a run's records: rows by the dataset, bytes and tensors by the plan's identity.

Runs where records land. What a host says of a record is checked before room is reserved for it, and the record's own
header is checked once its bytes are here. A host that lies fails alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from remote.shared.errors import HostError
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.run import RunIdentity
from remote.shared.shard.header import LONGEST_OF_A_SHARD, HeaderError, open_regular, read
from remote.shared.words import counted

MOST_ROWS = 1 << 24
"""The most rows of a record if the dataset is not at hand: more than any server's context."""
LONGEST_REASON = 500
_TOKEN_BYTES = 8
_ANSWER_TOKEN_BYTES = 5
"""Bytes of an answer's token: its id and its mask."""
_ANSWER_SPARE_BYTES = 1024
"""The most bytes of text and logprob that an answer's token has beside its id and mask."""
_DIGEST = re.compile(r"[0-9a-f]{32}")


class OfferError(HostError):
    """A host offers something that cannot be a record of the run."""

    kind = "protocol"


@dataclass(frozen=True)
class Bounds:
    """The records of one run."""

    identity: RunIdentity
    records: int
    """The number of records in the dataset."""
    lengths: Sequence[int] = ()
    """Tokens of every record, by index; empty if the dataset is not at hand."""

    def tensor_bytes(self, rows: int) -> int:
        """Return the bytes of the tensors of a record, or of several records, with `rows` rows in all."""
        if self.identity.answers is not None:
            return rows * _ANSWER_TOKEN_BYTES
        return rows * (_TOKEN_BYTES + self.identity.row_bytes)

    def _spare_bytes(self, rows: int) -> int:
        """Return the most bytes that a record may have beside its tensors: an answer's text and logprobs."""
        return 0 if self.identity.answers is None else rows * _ANSWER_SPARE_BYTES

    def problem(self, row: ShardRow) -> str:
        """Return why a host's ledger row cannot be a record of this run; "" if it can."""
        if not 0 <= row.index < self.records:
            return f"the dataset has {counted(self.records, 'record')}"
        if self.lengths and self.identity.answers is None and row.rows != self.lengths[row.index]:
            tokens = counted(self.lengths[row.index], "token")
            return f"it is said to have {counted(row.rows, 'row')}, and the dataset has {tokens}"
        if not 0 < row.rows <= MOST_ROWS:
            return f"it is said to have {row.rows:,} rows"
        least = self.tensor_bytes(row.rows)
        if not least < row.size_bytes <= least + LONGEST_OF_A_SHARD + self._spare_bytes(row.rows):
            return f"it is said to have {row.size_bytes:,} bytes, and its {row.rows:,} rows take {least:,}"
        return "" if _DIGEST.fullmatch(row.xxh3) else "its digest does not have the form of one"

    def misfit(self, row: ShardRow, path: Path) -> str:
        """Return why the header of the plain shard at `path` does not belong to this record; "" if it does."""
        identity = self.identity
        name, wanted = self._main_tensor(row.rows)
        try:
            with open_regular(path, follow_links=False) as stream:
                header = read(stream)
            found = header.tensors[name]
        except (HeaderError, KeyError):
            return "its safetensors header cannot be read"
        if (found.dtype, found.shape) != wanted:
            said = f"{found.dtype} {list(found.shape)}; {wanted[0]} {list(wanted[1])}"
            return f"its {name} are {said} was wanted"[:LONGEST_REASON]
        if self._marks.items() <= header.metadata.items():
            return ""
        return identity.mismatch(header.metadata)[:LONGEST_REASON].rstrip(".")

    def _main_tensor(self, rows: int) -> tuple[str, tuple[str, tuple[int, ...]]]:
        """Return the name, dtype and shape of the tensor that every shard of this run must have."""
        identity = self.identity
        if identity.answers is not None:
            return "input_ids", ("I32", (rows,))
        return "hidden_states", (identity.dtype, (rows, len(identity.boundaries), identity.hidden_size))

    @cached_property
    def _marks(self) -> dict[str, str]:
        """The run's metadata, computed once because every record is compared with it."""
        return self.identity.marks


class Listing:
    """Checks a host's offer as it arrives. A repeated record is refused, so an offer cannot be longer than the run."""

    def __init__(self, bounds: Bounds, each: Callable[[ShardRow], None]) -> None:
        self._bounds = bounds
        self._each = each
        self._seen = bytearray(bounds.records)

    def take(self, rows: Iterable[ShardRow]) -> None:
        """Pass on rows of the host's ledger; raises OfferError for an impossible or repeated record."""
        for row in rows:
            problem = self._bounds.problem(row) or ("it is offered twice" if self._seen[row.index] else "")
            if problem:
                raise OfferError(f"The host offers an impossible record {row.index}: {problem}.")
            self._seen[row.index] = 1
            self._each(row)
