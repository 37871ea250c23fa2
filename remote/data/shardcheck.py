"""Is one shard on disk what its ledger row says, and can it be hidden states of these tokens? Pure reading.

Called by `verify` from many threads; numpy and xxhash let go of the interpreter's lock while they work.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash

from remote.shared.errors import RecordError
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.verify import Fault, FaultKind
from remote.shared.shard.tensorfile import TensorFile

_EXPONENT = {"BF16": 0x7F80, "F16": 0x7C00}
_SIGNLESS = 0x7FFF


def check_shard(
    path: Path, row: ShardRow, identity: RunIdentity, token_ids: np.ndarray, *, every_byte: bool
) -> list[Fault]:
    """Return what is wrong with a shard, compressed ones unpacked into memory; empty where nothing is.

    `token_ids` are the dataset's, int [L]. Without `every_byte`, digests and values are not looked at.
    """
    found: list[tuple[FaultKind, str]] = []
    try:
        found.extend(_faults(path, row, identity, token_ids, every_byte))
    except RecordError as error:
        found.append(("unreadable", f"{error.message[:1].upper()}{error.message[1:]}."))
    return [Fault(kind=kind, index=row.index, file=path.name, message=message) for kind, message in found]


def _faults(
    path: Path, row: ShardRow, identity: RunIdentity, token_ids: np.ndarray, every_byte: bool
) -> Iterator[tuple[FaultKind, str]]:
    if not path.exists():
        yield "missing", "It is in the ledger and not on disk."
        return
    if row.stored == "plain" and path.stat().st_size != row.size_bytes:
        yield "size", f"It has {path.stat().st_size} bytes; the ledger says {row.size_bytes}."
    elif row.stored == "compressed" and not every_byte:
        return
    shard = TensorFile.open(path)
    if foreign := identity.mismatch(shard.metadata):
        yield "run", foreign
    if row.stored == "compressed" and len(shard.content) != row.size_bytes:
        yield "size", f"It unpacks to {len(shard.content)} bytes; the ledger says {row.size_bytes}."
    if every_byte and (digest := xxhash.xxh3_128_hexdigest(shard.content)) != row.xxh3:
        yield "digest", f"Its xxh3-128 is {digest}; the ledger says {row.xxh3}."
    yield from _of_form(shard, identity, len(token_ids))
    if row.rows != len(token_ids):
        yield "shape", f"The ledger says {row.rows} rows; the dataset has {len(token_ids)} tokens."
    yield from _of_tokens(shard, token_ids)
    if every_byte:
        yield from _of_values(shard)


def _of_form(shard: TensorFile, identity: RunIdentity, tokens: int) -> Iterator[tuple[FaultKind, str]]:
    spec = shard.tensors.get("hidden_states")
    if spec is None:
        raise RecordError("it has no hidden_states")
    wanted = (tokens, len(identity.boundaries), identity.hidden_size)
    if spec.shape != wanted:
        yield "shape", f"Its hidden_states are {list(spec.shape)}; {list(wanted)} was wanted."
    if spec.dtype != identity.dtype:
        yield "dtype", f"Its hidden_states are {spec.dtype}; {identity.dtype} was wanted."


def _of_tokens(shard: TensorFile, token_ids: np.ndarray) -> Iterator[tuple[FaultKind, str]]:
    held = shard.array("token_ids")
    if held.shape != token_ids.shape:
        yield "tokens", f"It has {len(held)} token ids; the dataset has {len(token_ids)}."
    elif len(different := np.flatnonzero(held != token_ids)):
        place = int(different[0])
        yield "tokens", f"Token {place} is {held[place]}; the dataset has {token_ids[place]}."


def _of_values(shard: TensorFile) -> Iterator[tuple[FaultKind, str]]:
    """Not finite, a row of zeros, or a slot that is the same in every row: what no forward pass leaves behind."""
    spec = shard.tensors["hidden_states"]
    states = shard.array("hidden_states")
    if states.ndim != 3 or not len(states):
        return
    for slot in range(states.shape[1]):
        rows = np.ascontiguousarray(states[:, slot])
        finite, anything = _row_facts(rows, spec.dtype)
        if not finite.all():
            yield "values", f"Row {int(np.argmin(finite))} of slot {slot} is not finite."
        if not anything.all():
            yield "values", f"Row {int(np.argmin(anything))} of slot {slot} is all zeros."
        elif len(rows) > 1 and bool((rows == rows[0]).all()):
            yield "values", f"All rows of slot {slot} are the same."


def _row_facts(rows: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Two bool [L]: is each row finite, and does it hold anything but zeros; 16-bit floats are judged by their bits."""
    finite: np.ndarray
    anything: np.ndarray
    if dtype in _EXPONENT:
        bits = rows.view(np.uint16)
        exponent = np.uint16(_EXPONENT[dtype])
        finite = np.all((bits & exponent) != exponent, axis=1)
        anything = np.any(bits & np.uint16(_SIGNLESS), axis=1)
    else:
        finite, anything = np.all(np.isfinite(rows), axis=1), np.any(rows, axis=1)
    return finite, anything
