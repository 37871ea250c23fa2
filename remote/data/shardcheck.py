"""Checks that one shard on disk is what its ledger row says, and can be hidden states of its tokens. Read-only.

Called by `verify` from many threads; numpy and xxhash let go of the interpreter's lock while they work.
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
"""Of states that are looked at together."""


@dataclass
class Checked:
    """The result of checking one shard."""

    faults: list[Fault] = field(default_factory=list)
    without_sums: bool = False
    """Its rows were looked at, and it holds no row sums to compare them with: an older Roost made it."""


def check_shard(
    path: Path, row: ShardRow, identity: RunIdentity, token_ids: np.ndarray, *, every_byte: bool
) -> Checked:
    """Look for what is wrong with a shard; a compressed one is unpacked into memory.

    `token_ids` are the dataset's, int [L]. Without `every_byte`, digests, values and row sums are not looked at.
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
        yield "missing", "It is in the ledger and not on disk."
        return
    if row.stored == "plain" and path.stat().st_size != row.size_bytes:
        yield "size", f"It has {path.stat().st_size} bytes; the ledger says {row.size_bytes}."
    elif row.stored == "compressed" and not every_byte:
        return
    shard = TensorFile.open(path, size=row.size_bytes)
    if foreign := identity.mismatch(shard.metadata):
        yield "run", foreign
    digest = xxhash.xxh3_128_hexdigest(shard.content) if every_byte else row.xxh3
    if digest != row.xxh3:
        yield "digest", f"Its xxh3-128 is {digest}; the ledger says {row.xxh3}."
    if identity.answers is not None:
        yield from _of_answers(shard, row, token_ids, last_only=identity.answers.last_only)
        return
    misfits = list(_of_form(shard, identity, len(token_ids)))
    yield from misfits
    if row.rows != len(token_ids):
        yield "shape", f"The ledger says {row.rows} rows; the dataset has {len(token_ids)} tokens."
    yield from _of_tokens(shard, token_ids)
    if every_byte and not misfits:
        checked.without_sums = NAME not in shard.metadata
        rows = RowCheck(shard.header.tensors[STATES], identity.boundaries, row.index)
        yield from _of_values(shard, rows, token_ids)
        if digest == row.xxh3:  # else it is known that its bytes have changed
            yield from _of_sums(shard, rows)


def _of_answers(
    shard: TensorFile, row: ShardRow, prompt: np.ndarray, *, last_only: bool
) -> Iterator[tuple[FaultKind, str]]:
    """Whether an answered conversation begins with its prompt, and its parts fit together."""
    rows = read(shard).rows
    if (total := sum(len(ids) for ids, _ in rows)) != row.rows:
        yield "shape", f"Its records have {total} tokens; the ledger says {row.rows}."
    if not last_only and not np.array_equal(rows[0][0][: len(prompt)], prompt):
        yield "tokens", "It does not begin with the prompt that the dataset has."
    if not all(mask.any() for _, mask in rows):
        yield "values", "One of its records has no sampled token."


def _of_form(shard: TensorFile, identity: RunIdentity, tokens: int) -> Iterator[tuple[FaultKind, str]]:
    span = shard.header.tensors.get(STATES)
    if span is None:
        raise RecordError(f"it has no {STATES}")
    wanted = (tokens, len(identity.boundaries), identity.hidden_size)
    if span.shape != wanted:
        yield "shape", f"Its {STATES} are {list(span.shape)}; {list(wanted)} was wanted."
    if span.dtype != identity.dtype:
        yield "dtype", f"Its {STATES} are {span.dtype}; {identity.dtype} was wanted."


def _of_tokens(shard: TensorFile, token_ids: np.ndarray) -> Iterator[tuple[FaultKind, str]]:
    held = shard.array(TOKENS)
    if (span := shard.header.tensors[TOKENS]).dtype != "I64" or held.shape != token_ids.shape:
        yield "tokens", f"Its {TOKENS} are {span.dtype} {list(held.shape)}; the dataset has {len(token_ids)} tokens."
    elif len(different := np.flatnonzero(held != token_ids)):
        place = int(different[0])
        yield "tokens", f"Token {place} is {held[place]}; the dataset has {token_ids[place]}."


def _of_values(shard: TensorFile, rows: RowCheck, token_ids: np.ndarray) -> Iterator[tuple[FaultKind, str]]:
    """Check every row; the first row that no forward pass can produce is the fault."""
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
    """Compare the row sums of the whole shard with those that capture stored."""
    if rows.seen == shard.header.tensors[STATES].shape[0] and NAME in shard.metadata:
        try:
            rows.sums.compare(shard.metadata[NAME])
        except RecordError as error:
            yield "sums", error.message
