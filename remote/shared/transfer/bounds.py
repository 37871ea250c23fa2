"""What a record of a run can be: its rows from the dataset, its bytes and tensors from the plan's identity.

Runs where records land. A host's word is held against these before room is reserved for a record, and again when its
bytes are here, so that a host that lies fails alone.
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
"""Of a record whose length nobody here knows: longer than any server's context."""
LONGEST_REASON = 500
_TOKEN_BYTES = 8
_ANSWER_TOKEN_BYTES = 5
"""A token of an answer is an id and a mask,"""
_ANSWER_SPARE_BYTES = 1024
"""and has at most so many bytes of text and logprob beside them."""
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
        if self.identity.answers is not None:
            return rows * _ANSWER_TOKEN_BYTES
        return rows * (_TOKEN_BYTES + self.identity.row_bytes)

    def _spare_bytes(self, rows: int) -> int:
        """What a record may have beside its tensors: an answer's text and logprobs."""
        return 0 if self.identity.answers is None else rows * _ANSWER_SPARE_BYTES

    def problem(self, row: ShardRow) -> str:
        """Why a host's ledger row can be no record of this run; "" if it can."""
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
        """Why the whole, plain shard at `path` is no record of this run by its own header; "" if it is one."""
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
        """The tensor by which a shard is known, with its dtype and shape."""
        identity = self.identity
        if identity.answers is not None:
            return "input_ids", ("I32", (rows,))
        return "hidden_states", (identity.dtype, (rows, len(identity.boundaries), identity.hidden_size))

    @cached_property
    def _marks(self) -> dict[str, str]:
        """Computed once: every record is held against them."""
        return self.identity.marks


class Listing:
    """A host's offer as it arrives: what cannot be, or comes twice, ends it, so that it is no longer than the run."""

    def __init__(self, bounds: Bounds, each: Callable[[ShardRow], None]) -> None:
        self._bounds = bounds
        self._each = each
        self._seen = bytearray(bounds.records)

    def take(self, rows: Iterable[ShardRow]) -> None:
        """Hand on rows of the host's ledger; raises OfferError."""
        for row in rows:
            problem = self._bounds.problem(row) or ("it is offered twice" if self._seen[row.index] else "")
            if problem:
                raise OfferError(f"The host offers an impossible record {row.index}: {problem}.")
            self._seen[row.index] = 1
            self._each(row)
