"""Joins a record's parts, one from each pipeline stage, into the dump that a server without stages would write.

Runs on the host in the collector's threads. Writes the whole dump beside its parts; deletes nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.extract.dump import open_dump, read_header
from remote.shared.errors import RecordError
from remote.shared.files import ASIDE, open_own
from remote.shared.shard import rowsums
from remote.shared.shard.header import Header, Span
from remote.shared.shard.layout import STATES, TOKENS, Layout

_ALIKE = ("rid", "rows", "token_digest", "dtype", "final", "sglang", "capture", "record_boundaries")
_BY_SLOT = ("boundaries", "mean_norm", "max_norm", rowsums.NAME)


def join(parts: Sequence[Path], dump: Path) -> None:
    """Write `dump` from its parts in order of stages; raises RecordError if the parts do not belong together."""
    headers = [_header(part) for part in parts]
    _check_alike(parts, headers)
    states = [_span(header, part, STATES) for header, part in zip(headers, parts, strict=True)]
    rows, _, hidden = states[0].shape
    layout = Layout(rows, sum(span.shape[1] for span in states), hidden, states[0].dtype)
    aside = dump.with_name(f"{ASIDE}{os.getpid()}-{dump.name}")
    descriptor = open_own(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(descriptor, 0, layout.size)
        os.pwrite(descriptor, layout.header(_metadata(headers)), 0)
        _interleave(parts, headers, states, np.memmap(aside, np.uint8, "r+"), layout)
        aside.rename(dump)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _interleave(
    parts: Sequence[Path], headers: list[Header], states: list[Span], out: NDArray[np.uint8], layout: Layout
) -> None:
    target = out[layout.states_offset :].reshape(layout.rows, layout.slots, -1)
    ids = out[layout.tokens_offset : layout.states_offset]
    first = 0
    for part, header, span in zip(parts, headers, states, strict=True):
        content = np.memmap(part, np.uint8, "r")
        tokens = _span(header, part, TOKENS)
        found = content[tokens.begin : tokens.end]
        if first == 0:
            ids[:] = found
        elif not np.array_equal(ids, found):
            raise RecordError(f"The record's parts have other tokens in {part.name} than in {parts[0].name}.")
        slots = span.shape[1]
        target[:, first : first + slots] = content[span.begin : span.end].reshape(layout.rows, slots, -1)
        first += slots


def _check_alike(parts: Sequence[Path], headers: list[Header]) -> None:
    first = headers[0].metadata
    for part, header in zip(parts, headers, strict=True):
        for key in _ALIKE:
            if header.metadata.get(key) != first.get(key):
                found, wanted = header.metadata.get(key), first.get(key)
                raise RecordError(
                    f"The record's parts differ: {key} is {found!r} in {part.name}, but {wanted!r} in the parts before."
                )
    boundaries = [boundary for header in headers for boundary in json.loads(header.metadata.get("boundaries", "[]"))]
    if boundaries != json.loads(first.get("record_boundaries", "null")):
        raise RecordError(
            f"The record's parts have the boundaries {boundaries}, but the record has {first.get('record_boundaries')}."
        )


def _metadata(headers: list[Header]) -> dict[str, str]:
    joined: dict[str, str] = {**headers[0].metadata}
    del joined["record_boundaries"]
    for key in _BY_SLOT:
        values: list[Any] = [value for header in headers for value in json.loads(header.metadata.get(key, "[]"))]
        joined[key] = json.dumps(values)
    joined["finite"] = "true" if all(header.metadata.get("finite") == "true" for header in headers) else "false"
    return joined


def _header(part: Path) -> Header:
    with open_dump(part) as file:
        return read_header(file, part)


def _span(header: Header, part: Path, name: str) -> Span:
    span = header.tensors.get(name)
    if span is None:
        raise RecordError(f"The part {part.name} has no {name}.")
    return span
