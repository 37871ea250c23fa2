"""Checks that a shard on disk agrees with its ledger row, and that its values can be hidden states. Read-only.

Called by `verify` in many threads, because numpy and xxhash release the interpreter's lock while they work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from remote.data.answered import read
from remote.shared.errors import RecordError
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.verify import Fault, FaultKind
from remote.shared.shard.layout import STATES, TOKENS
from remote.shared.shard.rows import RowCheck
from remote.shared.shard.rowsums import NAME
from remote.shared.shard.tensorfile import TensorFile

_CHUNK_BYTES = 2 << 20
"""Bytes of states that are checked at once."""


@dataclass
class Checked:
    """The result of checking one shard."""

    faults: list[Fault] = field(default_factory=list)
    without_sums: bool = False
    """Whether the rows were checked without row sums, because an older Roost made the shard without them."""


def check_shard(
    path: Path, row: ShardRow, identity: RunIdentity, token_ids: np.ndarray, *, every_byte: bool
) -> Checked:
    """Return the faults of a shard. A compressed shard is unpacked into memory.

    `token_ids` are the dataset's, int [L]. Without `every_byte`, digests, values and row sums are not checked.
    """
    checked = Checked()

    def note(kind: FaultKind, message: str) -> None:
        checked.faults.append(Fault(kind=kind, index=row.index, file=path.name, message=message))

    try:
        for kind, message in _faults(path, row, identity, token_ids, every_byte, checked):
            note(kind, message)
    except RecordError as error:
        note("unreadable", f"{error.message[:1].upper()}{error.message[1:]}.")
    return checked


def _faults(
    path: Path, row: ShardRow, identity: RunIdentity, token_ids: np.ndarray, every_byte: bool, checked: Checked
) -> Iterator[tuple[FaultKind, str]]:
    if not path.exists():
        yield "missing", "The ledger has a row for it, but the file does not exist."
        return
    if row.stored == "plain" and path.stat().st_size != row.size_bytes:
        yield "size", f"It has {path.stat().st_size} bytes, but the ledger says {row.size_bytes}."
    elif row.stored == "compressed" and not every_byte:
        return
    shard = TensorFile.open(path, size=row.size_bytes)
    if foreign := identity.mismatch(shard.metadata):
        yield "run", foreign
    digest = xxhash.xxh3_128_hexdigest(shard.content) if every_byte else row.xxh3
    if digest != row.xxh3:
        yield "digest", f"Its xxh3-128 is {digest}, but the ledger says {row.xxh3}."
    if identity.answers is not None:
        yield from _of_answers(shard, row, token_ids, last_only=identity.answers.last_only)
        return
    misfits = list(_of_form(shard, identity, len(token_ids)))
    yield from misfits
    if row.rows != len(token_ids):
        yield "shape", f"The ledger says {row.rows} rows, but the dataset has {len(token_ids)} tokens."
    yield from _of_tokens(shard, token_ids)
    if every_byte and not misfits:
        checked.without_sums = NAME not in shard.metadata
        rows = RowCheck(shard.header.tensors[STATES], identity.boundaries, row.index)
        yield from _of_values(shard, rows, token_ids)
        if digest == row.xxh3:  # otherwise its bytes are known to have changed
            yield from _of_sums(shard, rows)


def _of_answers(
    shard: TensorFile, row: ShardRow, prompt: np.ndarray, *, last_only: bool
) -> Iterator[tuple[FaultKind, str]]:
    """Check that an answered conversation begins with its prompt, and that its parts fit together."""
    rows = read(shard).rows
    if (total := sum(len(ids) for ids, _ in rows)) != row.rows:
        yield "shape", f"Its records have {total} tokens, but the ledger says {row.rows}."
    if not last_only and not np.array_equal(rows[0][0][: len(prompt)], prompt):
        yield "tokens", "It does not begin with the dataset's prompt."
    if not all(mask.any() for _, mask in rows):
        yield "values", "One of its records has no sampled token."


def _of_form(shard: TensorFile, identity: RunIdentity, tokens: int) -> Iterator[tuple[FaultKind, str]]:
    span = shard.header.tensors.get(STATES)
    if span is None:
        raise RecordError(f"it has no {STATES}")
    wanted = (tokens, len(identity.boundaries), identity.hidden_size)
    if span.shape != wanted:
        yield "shape", f"Its {STATES} have the shape {list(span.shape)}, but it should be {list(wanted)}."
    if span.dtype != identity.dtype:
        yield "dtype", f"Its {STATES} are {span.dtype}, but the run's dtype is {identity.dtype}."


def _of_tokens(shard: TensorFile, token_ids: np.ndarray) -> Iterator[tuple[FaultKind, str]]:
    held = shard.array(TOKENS)
    if (span := shard.header.tensors[TOKENS]).dtype != "I64" or held.shape != token_ids.shape:
        shape = f"{span.dtype} {list(held.shape)}"
        yield "tokens", f"Its {TOKENS} are {shape}, but the dataset has {len(token_ids)} tokens."
    elif len(different := np.flatnonzero(held != token_ids)):
        place = int(different[0])
        yield "tokens", f"Token {place} is {held[place]}, but the dataset has {token_ids[place]}."


def _of_values(shard: TensorFile, rows: RowCheck, token_ids: np.ndarray) -> Iterator[tuple[FaultKind, str]]:
    """Check every row, and report the first row that no forward pass can produce."""
    span = shard.header.tensors[STATES]
    step = max(_CHUNK_BYTES // rows.row_bytes, 1) * rows.row_bytes
    content = memoryview(shard.content)
    try:
        for begin in range(span.begin, span.end, step):
            rows.look(content[begin : min(begin + step, span.end)])
        rows.finish(token_ids)
    except RecordError as error:
        yield "values", error.message


def _of_sums(shard: TensorFile, rows: RowCheck) -> Iterator[tuple[FaultKind, str]]:
    """Compare the row sums of the whole shard with the row sums that capture stored."""
    if rows.seen == shard.header.tensors[STATES].shape[0] and NAME in shard.metadata:
        try:
            rows.sums.compare(shard.metadata[NAME])
        except RecordError as error:
            yield "sums", error.message
