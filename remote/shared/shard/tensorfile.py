"""safetensors files written as a stream and read as views, without torch: a header, then raw bytes in its order.

The `safetensors` package writes a file from tensors in memory; assignments and exported shards are larger than
that, or are copied piece by piece. Pure; called by the data verbs.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from remote.shared import foreign
from remote.shared.codec.container import SUFFIX as CONTAINER_SUFFIX
from remote.shared.codec.container import plain_pieces
from remote.shared.codec.piece import DamagedError
from remote.shared.codec.reader import CompressedShard
from remote.shared.errors import RecordError

Buffer = bytes | bytearray | mmap.mmap

ITEM_BYTES = {"I64": 8, "I32": 4, "F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I16": 2, "U8": 1, "I8": 1, "BOOL": 1}
_NUMPY = {
    "I64": "<i8",
    "I32": "<i4",
    "F64": "<f8",
    "F32": "<f4",
    "BF16": "<u2",
    "F16": "<f2",
    "I16": "<i2",
    "U8": "u1",
    "I8": "i1",
    "BOOL": "?",
}
_LONGEST_HEADER = 100 << 20
"""What the safetensors format itself allows."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor as the header names it; `dtype` in safetensors' words."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


def header(tensors: list[TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes before the data: its length in 8 bytes, then JSON padded with spaces to a multiple of 8."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size_bytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file, mapped (or unpacked into memory); arrays are views into it (BF16 as its bits, uint16)."""

    tensors: dict[str, TensorSpec]
    metadata: dict[str, str]
    content: Buffer
    """The whole file."""
    _starts: dict[str, int]

    @classmethod
    def open(cls, path: Path) -> TensorFile:
        """Map `path`, or unpack it where it is a compressed container; raise RecordError with what is wrong."""
        try:
            if path.suffix == CONTAINER_SUFFIX:
                return cls.parse(unpacked(path))
            with path.open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise RecordError("the file is missing") from error
        except (OSError, ValueError) as error:
            raise RecordError(f"the file cannot be mapped: {error}") from error
        return cls.parse(content)

    @classmethod
    def parse(cls, content: Buffer) -> TensorFile:
        """Read the header of a file that is in memory; raise RecordError with what is wrong with it."""
        specs, metadata, starts = _parsed(content)
        return cls(specs, metadata, content, starts)

    def array(self, name: str) -> np.ndarray:
        """Return tensor `name` as a read-only view; raise RecordError where there is none."""
        if name not in self.tensors:
            raise RecordError(f"it has no tensor {name!r} but {', '.join(self.tensors) or 'none'}")
        spec = self.tensors[name]
        count = math.prod(spec.shape)
        flat = np.frombuffer(self.content, _NUMPY[spec.dtype], count, self._starts[name])
        return flat.reshape(spec.shape)


def read_metadata(path: Path) -> dict[str, str]:
    """A shard's own metadata, of which no more than the beginning is read or unpacked; raise RecordError."""
    try:
        with CompressedShard(path) if path.suffix == CONTAINER_SUFFIX else path.open("rb") as shard:
            length = int.from_bytes(_first(shard, 8), "little")
            if length > _LONGEST_HEADER:
                raise RecordError("it is not a safetensors file")
            found = foreign.loads(_first(shard, length)).get("__metadata__", {})
            return {str(key): str(value) for key, value in found.items()}
    except (OSError, DamagedError, ValueError, AttributeError) as error:
        raise RecordError(f"its safetensors header cannot be read: {error}") from error


def _first(shard: IO[bytes] | CompressedShard, count: int) -> bytes:
    """The next `count` bytes; raise ValueError if the file ends before."""
    found = bytearray()
    while len(found) < count:
        more = shard.read(count - len(found))
        if not more:
            raise ValueError("it was cut short")
        found += more
    return bytes(found)


def unpacked(path: Path) -> bytearray:
    """The plain bytes of a compressed shard; raise RecordError where it is damaged."""
    plain = bytearray()
    try:
        with path.open("rb") as packed:
            for piece in plain_pieces(packed):
                plain += piece
    except DamagedError as error:
        raise RecordError(f"it cannot be unpacked: {error}") from error
    return plain


def _parsed(content: Buffer) -> tuple[dict[str, TensorSpec], dict[str, str], dict[str, int]]:
    length = int.from_bytes(content[:8], "little")
    if length > min(_LONGEST_HEADER, len(content) - 8):
        raise RecordError("it is not a safetensors file, or was cut short")
    try:
        entries = foreign.loads(content[8 : 8 + length])
        metadata = entries.pop("__metadata__", {})
        specs = {name: TensorSpec(name, entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()}
        places = {name: entry["data_offsets"] for name, entry in entries.items()}
        sizes_fit = all(
            min(0, *spec.shape, places[name][0]) == 0 and places[name][1] - places[name][0] == spec.size_bytes
            for name, spec in specs.items()
        )
        end = max((stop for _, stop in places.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecordError("its safetensors header cannot be read") from error
    if not sizes_fit or 8 + length + end != len(content):
        raise RecordError(f"it has {len(content)} bytes and its header speaks of {8 + length + end}")
    return specs, metadata, {name: 8 + length + start for name, (start, _) in places.items()}
