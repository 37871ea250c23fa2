"""Reads a dump's header, and checks that the dump is the requested record.

Runs on the host in the collector's threads; read-only. `store` checks the rows themselves.
"""

from __future__ import annotations

import errno
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from remote.shared import foreign
from remote.shared.errors import RecordError
from remote.shared.messages.run import RunIdentity
from remote.shared.shard import header as headers
from remote.shared.shard import rowsums
from remote.shared.shard.header import Header, HeaderError, Span
from remote.shared.shard.layout import STATES, TOKENS, Layout


@dataclass(frozen=True)
class Expected:
    """The values that a dump's header must have to be accepted as the requested record."""

    rid: str
    index: int
    tokens: NDArray[np.int32]
    identity: RunIdentity
    sglang: str
    capture: str

    @property
    def layout(self) -> Layout:
        """The layout of this record's dump and shard."""
        return layout_of(self.identity, len(self.tokens))


def layout_of(identity: RunIdentity, rows: int) -> Layout:
    """Return the layout of a record of `rows` rows in this run."""
    return Layout(rows, len(identity.boundaries), identity.hidden_size, identity.dtype)


def open_dump(path: Path) -> BinaryIO:
    """Open a dump or a part of a dump; raises RecordError unless it is a regular file, OSError like `open`."""
    try:
        return headers.open_regular(path, follow_links=False)
    except HeaderError as error:
        raise RecordError(f"The dump {path.name} {error}.") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RecordError(f"The dump {path.name} is a symbolic link.") from error
        raise


def token_digest(tokens: NDArray[Any]) -> str:
    """Return the xxh3-128 of the token ids as little-endian int64 (32 hex digits), which capture writes too."""
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(tokens, dtype="<i8").data)


def read_header(file: BinaryIO, path: Path) -> Header:
    """Read the header of an open dump; raises RecordError if the file is no complete safetensors file."""
    try:
        return headers.read(file)
    except HeaderError as error:
        raise RecordError(f"The dump {path.name} {error}.") from error


def check(header: Header, expected: Expected) -> Span:
    """Compare a dump's header with the expected values; return the place of its hidden states.

    Raises RecordError, which names both values, if a value differs.
    """
    identity, rows, layout = expected.identity, len(expected.tokens), expected.layout
    states, tokens = header.tensors.get(STATES), header.tensors.get(TOKENS)
    if states is None or tokens is None:
        raise RecordError(f"The dump has {sorted(header.tensors)} instead of hidden_states and token_ids."[:300])
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
    _same("token_ids", (tokens.dtype, tokens.shape), ("I64", (rows,)))
    _same("places", (tokens.begin, states.begin), (layout.tokens_offset, layout.states_offset))
    _same("size", header.size, layout.size)
    if said("finite") != "true":
        raise RecordError("The capture saw a value that is not finite.")
    return states


def check_tokens(file: BinaryIO, header: Header, expected: Expected) -> None:
    """Compare the token ids in the file with the token ids that were sent."""
    span = header.tensors[TOKENS]
    file.seek(span.begin)
    echoed = np.frombuffer(file.read(span.end - span.begin), dtype="<i8")
    if not np.array_equal(echoed, expected.tokens):
        place = int(np.flatnonzero(echoed != expected.tokens)[0])
        raise RecordError(f"Token {place} of the dump is {echoed[place]}, but {expected.tokens[place]} was sent.")


def norms(header: Header, slots: int) -> tuple[list[float], list[float]]:
    """Return each slot's mean and maximum norm, as capture measured them."""
    mean, largest = _json(header.metadata.get("mean_norm")), _json(header.metadata.get("max_norm"))
    for values in (mean, largest):
        numbers = isinstance(values, list) and all(isinstance(value, float | int) for value in values)
        if not numbers or len(values) != slots or not all(math.isfinite(value) for value in values):
            raise RecordError(f"The dump's norms are {values!r} instead of {slots} finite numbers.")
        if min(values) <= 0:
            raise RecordError(f"Slot {values.index(min(values))} of the dump is all zeros.")
    return mean, largest


def row_sums(header: Header) -> str:
    """Return the dump's row sums as capture wrote them; raises RecordError if there are none."""
    claimed = header.metadata.get(rowsums.NAME)
    if claimed is None:
        raise RecordError(
            "The dump has no row sums, because its server runs an older Roost's capture. Restart the "
            "server: `inv restart`."
        )
    return claimed


def _json(text: str | None) -> Any:
    try:
        return foreign.loads(text or "null")
    except ValueError:
        return text


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise RecordError(f"The dump's {what} is {found!r:.200}, but {wanted!r} was requested.")
