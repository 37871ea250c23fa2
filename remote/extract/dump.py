"""A capture's dump as a file: its header, and whether it is the record that was asked for.

Runs on the host in the collector's threads. Reads only; what is in the rows themselves is `store`'s to look at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from remote.shared import foreign
from remote.shared.errors import RecordError
from remote.shared.messages.run import RunIdentity

_HEADER_LIMIT = 1 << 20
HEADER_BYTES = 4096
"""About what a dump's header takes."""


@dataclass(frozen=True)
class Span:
    """A tensor's place in the file, in bytes from its start."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A safetensors header, with absolute offsets."""

    tensors: dict[str, Span]
    metadata: dict[str, str]
    size_bytes: int
    """Of the header area: where the tensors begin."""


@dataclass(frozen=True)
class Expected:
    """What a dump must say about itself to be taken for the record that was asked for."""

    rid: str
    index: int
    tokens: NDArray[np.int32]
    identity: RunIdentity
    sglang: str
    capture: str

    @property
    def size_limit_bytes(self) -> int:
        """No sound dump of this record is larger."""
        return 2 * _HEADER_LIMIT + state_bytes(self.identity, len(self.tokens)) + 8 * len(self.tokens)


def state_bytes(identity: RunIdentity, rows: int) -> int:
    """Bytes of a record's hidden states."""
    return rows * identity.row_bytes


def expected_bytes(identity: RunIdentity, rows: int) -> int:
    """Bytes of a record's dump, and of its shard."""
    return state_bytes(identity, rows) + 8 * rows + HEADER_BYTES


def token_digest(tokens: NDArray[Any]) -> str:
    """xxh3-128 of the token ids as little-endian int64, 32 hex digits: what capture echoes."""
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(tokens, dtype="<i8").data)


def read_header(file: BinaryIO, path: Path) -> Header:
    """Read the header of an open safetensors file; raises RecordError where it is not one."""
    try:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= _HEADER_LIMIT:
            raise ValueError(f"a header of {length} bytes")
        entries = orjson.loads(file.read(length))
        metadata = entries.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise TypeError("its metadata are not texts")
        tensors = {name: _span(entry, 8 + length) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"The dump {path.name} is not a safetensors file: {error}.") from error
    return Header(tensors, metadata, 8 + length)


def check(header: Header, size: int, expected: Expected) -> Span:
    """Compare a dump's own words with what was asked for; returns the place of its hidden states.

    Raises RecordError with both values where one differs.
    """
    identity, rows = expected.identity, len(expected.tokens)
    states, tokens = header.tensors.get("hidden_states"), header.tensors.get("token_ids")
    if states is None or tokens is None:
        raise RecordError(f"The dump holds {sorted(header.tensors)} instead of hidden_states and token_ids.")
    said = header.metadata.get
    _same("rid", said("rid"), expected.rid)
    _same("rows", said("rows"), str(rows))
    _same("token ids' digest", said("token_digest"), token_digest(expected.tokens))
    _same("boundaries", _json(said("boundaries")), list(identity.boundaries))
    _same("final state", said("final"), identity.final)
    _same("SGLang version", said("sglang"), expected.sglang)
    _same("capture version", said("capture"), expected.capture)
    _same("dtype", states.dtype, identity.dtype)
    _same("shape", states.shape, (rows, len(identity.boundaries), identity.hidden_size))
    _same("size of the states", states.end - states.begin, state_bytes(identity, rows))
    _same("token_ids", (tokens.dtype, tokens.shape, tokens.end - tokens.begin), ("I64", (rows,), 8 * rows))
    _same("size of the file", size, max(states.end, tokens.end))
    if said("finite") != "true":
        raise RecordError("The capture saw a value that is not finite.")
    return states


def check_tokens(file: BinaryIO, header: Header, expected: Expected) -> None:
    """Compare the token ids in the file, one by one, with those sent."""
    span = header.tensors["token_ids"]
    file.seek(span.begin)
    echoed = np.frombuffer(file.read(span.end - span.begin), dtype="<i8")
    if not np.array_equal(echoed, expected.tokens):
        place = int(np.flatnonzero(echoed != expected.tokens)[0])
        raise RecordError(f"Token {place} of the dump is {echoed[place]}, and {expected.tokens[place]} was sent.")


def norms(header: Header, slots: int) -> tuple[list[float], list[float]]:
    """Mean and maximum norm a slot, as capture measured them."""
    mean, largest = _json(header.metadata.get("mean_norm")), _json(header.metadata.get("max_norm"))
    for values in (mean, largest):
        numbers = isinstance(values, list) and all(isinstance(value, float | int) for value in values)
        if not numbers or len(values) != slots or not all(math.isfinite(value) for value in values):
            raise RecordError(f"The dump's norms are {values!r} instead of {slots} finite numbers.")
        if min(values) <= 0:
            raise RecordError(f"Slot {values.index(min(values))} of the dump is all zeros.")
    return mean, largest


def _span(entry: dict[str, Any], base: int) -> Span:
    begin, end = entry["data_offsets"]
    if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end):
        raise ValueError(f"offsets {begin}, {end}")
    return Span(entry["dtype"], tuple(entry["shape"]), base + begin, base + end)


def _json(text: str | None) -> Any:
    try:
        return foreign.loads(text or "null")
    except ValueError:
        return text


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise RecordError(f"The dump's {what} is {found!r:.200}, and {wanted!r} was asked for.")
