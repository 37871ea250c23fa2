"""Pipeline stages write parts of a record; this makes the record of them. Host side, called by the collector.

A part is a dump of its own slots: `<rid>.stage<k>of<n>.safetensors`, k from 0. Joining copies rows and changes none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.shared.errors import RecordError
from remote.shared.files import written_aside
from remote.shared.shard.layout import Layout

_PART = re.compile(r"(?P<rid>roost\.[^/]+)\.stage(?P<part>\d+)of(?P<parts>\d+)\.safetensors")
_SAME = (
    "rid",
    "index",
    "rows",
    "token_digest",
    "dtype",
    "convention",
    "final",
    "record_boundaries",
    "sglang",
    "capture",
)
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Part:
    """A part's name, taken apart."""

    rid: str
    part: int
    parts: int

    @classmethod
    def of(cls, path: Path) -> Part | None:
        """None where `path` is no part of a record."""
        found = _PART.fullmatch(path.name)
        return cls(found["rid"], int(found["part"]), int(found["parts"])) if found else None

    def siblings(self, directory: Path) -> list[Path]:
        """All parts of this record, whether they are there yet or not."""
        return [directory / f"{self.rid}.stage{k}of{self.parts}.safetensors" for k in range(self.parts)]


@dataclass(frozen=True)
class _Open:
    path: Path
    metadata: dict[str, str]
    boundaries: list[int]
    states: NDArray[np.uint8]
    """[rows, slots, bytes of a row], mapped."""
    tokens: NDArray[np.uint8]
    dtype: str
    hidden: int


def join(parts: Sequence[Path], out: Path) -> None:
    """Write the whole record to `out` (atomically); the parts stay.

    Raises RecordError naming what differs where the parts are not of one record.
    """
    opened = [_open(path) for path in parts]
    first = opened[0]
    for other in opened[1:]:
        for key in _SAME:
            if other.metadata.get(key) != first.metadata.get(key):
                raise RecordError(
                    f"{other.path.name} has {key} {other.metadata.get(key)!r}, and {first.path.name} has"
                    f" {first.metadata.get(key)!r}: they are not parts of one record."
                )
    wanted: list[int] = json.loads(first.metadata["record_boundaries"])
    place = {boundary: (part, slot) for part in opened for slot, boundary in enumerate(part.boundaries)}
    missing = [boundary for boundary in wanted if boundary not in place]
    if missing:
        raise RecordError(f"No stage's part of {first.metadata['rid']} holds boundary {missing[0]}.")
    sources = [place[boundary] for boundary in wanted]
    rows = int(first.metadata["rows"])
    layout = Layout(rows, len(wanted), first.hidden, first.dtype)
    with written_aside(out) as aside, aside.open("r+b") as file:
        file.write(layout.header(_metadata(first.metadata, wanted, sources)))
        file.write(first.tokens.tobytes())
        for start in range(0, rows, _ROWS_AT_ONCE):
            block = slice(start, start + _ROWS_AT_ONCE)
            file.write(np.stack([part.states[block, slot] for part, slot in sources], axis=1).tobytes())


def _metadata(about: dict[str, str], wanted: list[int], sources: Sequence[tuple[_Open, int]]) -> dict[str, str]:
    joined = {**about, "boundaries": json.dumps(wanted)}
    for key in ("mean_norm", "max_norm"):
        joined[key] = json.dumps([json.loads(part.metadata[key])[slot] for part, slot in sources])
    joined["finite"] = "true" if all(part.metadata["finite"] == "true" for part, _ in sources) else "false"
    return joined


def _open(path: Path) -> _Open:
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
        length = int.from_bytes(content[:8].tobytes(), "little")
        entries: dict[str, Any] = json.loads(content[8 : 8 + length].tobytes())
        states, tokens = entries["hidden_states"], entries["token_ids"]
        rows, slots, hidden = states["shape"]
        data = content[8 + length :]
        begin, end = states["data_offsets"]
        return _Open(
            path=path,
            metadata=entries["__metadata__"],
            boundaries=json.loads(entries["__metadata__"]["boundaries"]),
            states=data[begin:end].reshape(rows, slots, -1),
            tokens=data[slice(*tokens["data_offsets"])],
            dtype=states["dtype"],
            hidden=hidden,
        )
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(f"The part {path.name} cannot be read: {error}.") from error
